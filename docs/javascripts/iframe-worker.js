// Browsers give a page that was opened from the folder no Worker, which the search needs: a hidden frame stands for it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(script) {
      super();
      this.frame = document.body.appendChild(document.createElement("iframe"));
      this.frame.hidden = true;
      const inner = this.frame.contentWindow;
      addEventListener("message", (event) => {
        if (event.source === inner) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      inner.document.open();
      inner.document.write("<!doctype html><script>" +
        "postMessage = (data) => parent.dispatchEvent(new MessageEvent('message', { data, source: window }));" +
        "</" + "script><script src='" + script + "'></" + "script>");
      inner.document.close();
      this.ready = new Promise((done) => inner.addEventListener("load", done));
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
