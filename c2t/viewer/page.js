"use strict";
// Draws the document: the text, the rounds' bars, and the tree of one round for each policy.
// Text from the model goes through textContent only, never through HTML.

const $ = (id) => document.getElementById(id);
const doc = JSON.parse($("document").textContent);
const LONGEST = 20; // characters of a token on its chip
const CHIP = 20, ROW = 25, GAP = 40, MARGIN = 14, HEADING = 46, NARROWEST = 40; // pixels
const SECOND = 1000; // milliseconds of a round while playing

const views = doc.policies.map((policy) => ({ policy, moved: null, round: null, figure: null }));
let current = 0; // round of the first policy
let playing = 0; // number of the interval

// --- Text

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A token in one line, with blanks and invisible characters made visible.
function visible(text) {
  const shown = text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/\r/g, "␍");
  return shown.replace(/[\p{C}\p{Z}]/gu, (c) => `⟨${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`) || "∅";
}

const tokenText = (token) => visible(doc.texts[token] ?? `#${token}`);
const short = (text) => ([...text].length > LONGEST ? [...text].slice(0, LONGEST - 1).join("") + "…" : text);
const plural = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
const percent = (p) => (Number.isNaN(p) ? "not verified" : p >= 0.0995 ? `${(100 * p).toFixed(1)} %` : `${(100 * p).toPrecision(2)} %`);
const decimal = (x) => (x >= 0.0995 ? x.toFixed(3) : x.toPrecision(2));

// All tokens that a policy's rounds wrote, and for each round the place of its root among them.
function written(policy) {
  const tokens = [...policy.first.tokens], starts = [];
  for (const round of policy.rounds) {
    starts.push(tokens.length - 1);
    tokens.push(...round.tokens);
  }
  return { tokens, starts };
}

// Strength of an accepted token's colour; depth 0 stands right under the root.
const tint = (depth) => `color-mix(in oklab, var(--accept) ${Math.min(18 + 9 * depth, 60)}%, transparent)`;

function piece(text, depth) {
  const made = element("i", {}, text);
  if (depth >= 0) made.style.background = tint(depth);
  return made;
}

function drawText() {
  const policy = doc.policies[0];
  $("prompt").textContent = doc.prompt;
  $("answer").replaceChildren(...policy.first.pieces.slice(0, policy.first.shown).map((text) => piece(text, -1)));
  policy.rounds.forEach((round, number) => $("answer").append(roundText(round, number)));
  const deepest = Math.max(0, ...policy.rounds.map((round) => round.accepted.length));
  const depths = Array.from({ length: Math.min(deepest, 10) }, (_, depth) => piece(String(depth), depth));
  const own = piece("the target’s own", -1);
  own.className = "own";
  $("depths").replaceChildren("Guessed by the draft and accepted, at depth ", ...depths, "   ", own);
}

function roundText(round, number) {
  const told = `Round ${number + 1}: ${round.accepted.length} accepted, then the target’s own`;
  const made = element("span", { class: "round", title: told, "data-round": number });
  round.pieces.slice(0, round.shown).forEach((text, depth) => {
    made.append(piece(text, depth < round.accepted.length ? depth : -1));
  });
  return made;
}

// --- Rounds

function drawBars() {
  const rounds = doc.policies[0].rounds, most = Math.max(1, ...rounds.map((round) => round.kept.length + 1));
  $("bars").replaceChildren(...rounds.map((round, number) => {
    const bar = element("span", {}, element("b"));
    bar.style.height = `${(100 * (round.kept.length + 1)) / most}%`;
    bar.firstChild.style.height = `${(100 * round.accepted.length) / (round.kept.length + 1)}%`;
    const told = `Round ${number + 1}: ${round.kept.length + 1} verified, ${round.accepted.length} accepted`;
    return element("div", { title: told, "data-round": number }, bar);
  }));
  $("slider").max = Math.max(rounds.length, 1);
  $("slider").style.setProperty("--rounds", Math.max(rounds.length, 1));
}

function totals(policy) {
  const rounds = policy.rounds.length || 1;
  const accepted = policy.rounds.reduce((sum, round) => sum + round.accepted.length, 0);
  const verified = policy.rounds.reduce((sum, round) => sum + round.kept.length + 1, 0);
  const per = (sum) => (sum / rounds).toFixed(2);
  return `${policy.name}: ${plural(policy.rounds.length, "round")}; in each ${per(verified)} tokens verified, ${per(accepted)} accepted`;
}

function drawTotals() {
  const [one, other] = doc.policies.map((policy) => written(policy).tokens);
  const until = other ? one.findIndex((token, place) => place < other.length && other[place] !== token) : -1;
  const same = !other || !doc.policies[1].rounds.length ? "" : until < 0 ? " · same text" : ` · texts differ from token ${until} on`;
  $("totals").textContent = doc.policies.map(totals).join(" · ") + same;
}

function go(number) {
  current = Math.max(0, Math.min(number, doc.policies[0].rounds.length - 1));
  show();
}

// The first of the rounds with the longest accepted path, which shows best what trees do.
function longestRound() {
  const lengths = doc.policies[0].rounds.map((round) => round.accepted.length);
  return lengths.indexOf(Math.max(...lengths));
}

// Show the current round of the first policy, and the round of the other that writes the same token.
function show() {
  const count = doc.policies[0].rounds.length;
  $("slider").value = current + 1;
  $("slider").setAttribute("aria-valuetext", `round ${current + 1} of ${count}`);
  $("number").textContent = count ? `Round ${current + 1} of ${count}` : "No round yet";
  for (const made of document.querySelectorAll("[data-round]")) made.classList.toggle("current", Number(made.dataset.round) === current);
  views.forEach((view, place) => select(view, place ? sameRound(view.policy) : current));
  drawSummary();
  for (const view of views.toReversed()) if (view.round) describe(view, telling(view));
  document.querySelector("#answer .current")?.scrollIntoView({ block: "nearest" });
}

// The node to describe first: the last accepted one, else what the target wrote instead.
function telling(view) {
  const own = [...view.nodes.values()].find((at) => at.data.kind === "missed" || at.data.kind === "bonus");
  return view.result.path.at(-1) ?? own?.data.node ?? 0;
}

function sameRound(policy) {
  const { starts } = written(doc.policies[0]), place = starts[current];
  return written(policy).starts.findLastIndex((start) => start <= place);
}

function select(view, number) {
  const raw = view.policy.rounds[number];
  view.number = number;
  view.raw = raw;
  view.round = raw ? Rounds.read(raw, view.policy) : null;
  drawFigure(view);
  view.scroll.scrollTop = view.middle - view.scroll.clientHeight / 2;
  view.scroll.scrollLeft = 0;
}

// What the round keeps and accepts: as decoded, or with the beta that was moved.
function result(view) {
  const { round, raw, policy, moved } = view;
  const { tokens, starts } = written(policy), text = tokens.slice(starts[view.number] + 1);
  if (moved === null) {
    return { kept: round.kept, verified: raw.kept.length + 1, unseen: 0, path: raw.accepted, next: raw.tokens[raw.accepted.length] };
  }
  const pruned = Rounds.prune(round, moved, policy.limits), path = Rounds.walk(round, pruned.kept, text);
  return { ...pruned, path, next: text[path.length] };
}

// The round in words, which a screen reader says; not while playing.
function drawSummary() {
  const raw = doc.policies[0].rounds[current], past = raw ? raw.tokens.length - raw.shown : 0;
  const told = views.filter((view) => view.round).map(({ policy, round, result, moved }) => {
    const at = moved === null ? "" : ` at ${decimal(moved)}`;
    return `${policy.name}${at}: ${round.size - 1} drafted, ${result.verified} verified, ${result.path.length} accepted.`;
  });
  $("summary").setAttribute("aria-live", playing ? "off" : "polite");
  $("summary").textContent = raw
    ? `Round ${current + 1} wrote “${raw.pieces.join("")}”${past ? `, of which ${plural(past, "token")} past the end` : ""}. ${told.join(" ")}`
    : "";
}

// --- Tree

function makeFigure(view, place) {
  const { policy } = view, title = element("h2", { title: policy.spec }, policy.name);
  view.funnel = element("span", { class: "funnel" });
  const caption = element("figcaption", {}, title, view.funnel);
  if (policy.threshold !== null) caption.append(...betaControl(view, place));
  view.svg = drawn("svg", { role: "tree", "aria-label": `Tree of ${policy.name}` });
  view.scroll = element("div", { class: "scroll" }, view.svg);
  view.figure = element("figure", {}, caption, view.scroll);
  view.svg.addEventListener("keydown", (event) => walkTree(view, event));
  $("trees").append(view.figure);
}

function betaControl(view, place) {
  const { threshold, classifier } = view.policy, name = classifier ? "beta" : "threshold";
  const [least, most, step] = classifier ? [0.005, 0.995, 0.005] : [-4, 0, 0.02]; // joint probabilities: powers of ten
  const read = (value) => (classifier ? Number(value) : 10 ** value), write = (value) => (classifier ? value : Math.log10(value));
  const input = element("input", { type: "range", id: `beta${place}`, min: least, max: most, step });
  const told = element("output", { for: `beta${place}` }), reset = element("button", { type: "button" }, "As decoded");
  const note = "Tokens under a pruned one were never drafted, so a lower value than the decoded one shows only what was drafted; "
    + "to see more, decode with ";
  const command = element("code", {}, `--policy ${classifier ? "c2t:beta" : "threshold:threshold"}=VALUE`);
  const move = (value) => {
    view.moved = value;
    if (value === null) input.value = write(threshold);
    input.setAttribute("aria-valuetext", decimal(value ?? threshold));
    told.textContent = value === null ? `${decimal(threshold)}, as decoded` : decimal(value);
    reset.disabled = value === null;
    if (!view.round) return;
    drawFigure(view);
    drawSummary();
  };
  input.addEventListener("input", () => move(read(input.value)));
  reset.addEventListener("click", () => move(null));
  move(null);
  return [
    element("div", { class: "beta" }, element("label", { for: `beta${place}` }, name), input, told, reset),
    element("p", { class: "note" }, note, command, "."),
  ];
}

function drawFigure(view) {
  if (!view.round) {
    view.svg.replaceChildren();
    view.funnel.textContent = "no round yet";
    return;
  }
  view.result = result(view);
  drawFunnel(view);
  drawTree(view);
}

function drawFunnel(view) {
  const { round, raw, result } = view, number = (value, kind = "") => element("b", { class: kind }, String(value));
  const was = (value, before) => (view.moved !== null && value !== before ? ` (decoded: ${before})` : "");
  view.funnel.replaceChildren(
    number(round.size - 1), ` drafted in ${raw.passes} ${raw.passes === 1 ? "pass" : "passes"} → `,
    number(result.verified), ` verified with the root${was(result.verified, raw.kept.length + 1)} → `,
    number(result.path.length, "accepted"), ` accepted${was(result.path.length, raw.accepted.length)} + 1 of the target’s own`,
  );
  if (result.unseen) view.funnel.append(`. Incomplete: of ${plural(result.unseen, "kept node")} the candidates were never drafted`);
}

// The nodes to draw as nested objects: kept ones, likely pruned ones, and what the target wrote after the accepted path.
function visibleTree(view) {
  const { round, result } = view, least = Number($("pruned").value), end = result.path.at(-1) ?? 0;
  const missed = round.children[end].find((child) => round.token[child] === result.next) ?? -1;
  const shown = new Uint8Array(round.size);
  for (let node = round.size - 1; node >= 0; node--) {
    const wanted = result.kept[node] || round.kept[node] || node === missed || Math.exp(round.logJoint[node]) >= least;
    if (wanted || shown[node]) {
      shown[node] = 1;
      if (node) shown[round.parent[node]] = 1;
    }
  }
  const onPath = new Set([0, ...result.path]);
  const build = (node) => {
    const kind = !node ? "root" : onPath.has(node) ? "accepted" : result.kept[node] ? "kept" : node === missed ? "missed" : "faint";
    const children = round.children[node].filter((child) => shown[child]).map(build);
    if (node === end && missed < 0 && result.next !== undefined) children.unshift({ node: -1, kind: "bonus", token: result.next, children: [] });
    return { node, kind, token: node ? round.token[node] : rootToken(view), children };
  };
  return build(0);
}

function rootToken(view) {
  const { tokens, starts } = written(view.policy);
  return tokens[starts[view.number]];
}

const pen = document.createElement("canvas").getContext("2d");
function width(text) {
  pen.font = '700 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace';
  return pen.measureText(text).width + 14;
}

function layout(view) {
  const height = (at) => (at.data.kind === "faint" ? 0.88 : 1);
  const tree = d3.hierarchy(visibleTree(view));
  d3.tree().nodeSize([ROW, 1]).separation((a, b) => (height(a) + height(b)) / 2 + (a.parent === b.parent ? 0 : 0.25))(tree);
  const columns = [];
  tree.each((at) => {
    at.label = short(tokenText(at.data.token));
    at.width = width(at.label);
    columns[at.depth] = Math.max(columns[at.depth] ?? NARROWEST, at.width);
  });
  const left = columns.map((_, depth) => MARGIN + columns.slice(0, depth).reduce((sum, wide) => sum + wide + GAP, 0));
  const top = Math.min(...tree.descendants().map((at) => at.x)) - CHIP / 2 - HEADING;
  tree.each((at) => Object.assign(at, { left: left[at.depth], middle: at.x - top }));
  return { tree, left };
}

function drawTree(view) {
  const { tree, left } = layout(view), all = tree.descendants();
  const order = ["faint", "kept", "bonus", "missed", "accepted"];
  const edges = all.slice(1).sort((a, b) => order.indexOf(a.data.kind) - order.indexOf(b.data.kind)).map((at) => edge(view, at));
  view.nodes = new Map(all.map((at) => [at.data.node, at]));
  const wide = Math.max(...all.map((at) => at.left + at.width)) + MARGIN + 30, high = Math.max(...all.map((at) => at.middle)) + CHIP / 2 + MARGIN;
  view.middle = (tree.middle + view.nodes.get(view.result.path.at(-1) ?? 0).middle) / 2;
  view.svg.setAttribute("width", wide);
  view.svg.setAttribute("height", high);
  view.svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  const chips = [];
  tree.eachBefore((at) => chips.push(chip(view, at)));
  view.svg.replaceChildren(drawn("g", { "aria-hidden": "true" }, ...levels(view, left), ...edges), ...chips);
}

// Headings above the columns: how many candidates of each depth were drafted and how many are kept.
function levels(view, left) {
  return left.slice(1).map((x, depth) => {
    const nodes = [...view.round.depth.keys()].filter((node) => view.round.depth[node] === depth);
    const kept = nodes.filter((node) => view.result.kept[node]).length;
    const line = (text, y) => drawn("tspan", { x, y }, text);
    return drawn("text", { class: "level" }, line(`depth ${depth}`, 16), line(`${kept} of ${nodes.length}`, 31));
  });
}

// Edges are as wide as the draft's own probability of the token.
function edge(view, at) {
  const { node, kind } = at.data, from = at.parent.left + at.parent.width, bend = (from + at.left) / 2;
  const wide = kind === "faint" || node < 0 ? 1.2 : 1.2 + 6.5 * Math.exp(view.round.logProb[node]);
  const path = `M${from},${at.parent.middle}C${bend},${at.parent.middle} ${bend},${at.middle} ${at.left},${at.middle}`;
  return drawn("path", { class: `edge ${kind}`, d: path, "stroke-width": wide.toFixed(1) });
}

// Colour of a chip, 0 to 1: confidence as it is, joint probabilities by their logarithm, from one in a thousand.
function strength(view, node) {
  const value = view.round.confidence[node];
  return view.policy.classifier ? value : Math.max(0, 1 + Math.log10(value) / 3);
}

function chip(view, at) {
  const { node, kind } = at.data, box = drawn("rect", { x: at.left, y: at.middle - CHIP / 2, width: at.width, height: CHIP, rx: 6 });
  const text = drawn("text", { x: at.left + 7, y: at.middle }, at.label);
  const made = drawn("g", {
    class: `node ${kind}`, role: "treeitem", "aria-level": at.depth + 1, tabindex: node ? -1 : 0, "data-node": node,
    "aria-label": `${tokenText(at.data.token)}: ${verdict(view, at.data)}`,
  }, box, text);
  made.style.setProperty("--strength", node > 0 ? strength(view, node).toFixed(3) : 0);
  const hidden = node < 0 ? 0 : view.round.children[node].length;
  if (hidden && !at.children) made.append(drawn("text", { class: "more", x: at.left + at.width + 6, y: at.middle }, `+${hidden}`));
  made.addEventListener("mouseenter", () => describe(view, node));
  made.addEventListener("focus", () => describe(view, node));
  at.made = made;
  return made;
}

// Arrow keys within a tree: parent, first child, the nodes above and below.
function walkTree(view, event) {
  const at = view.nodes.get(Number(event.target.dataset?.node));
  if (!at) return;
  const rows = [...view.nodes.values()].filter((other) => other.depth === at.depth).sort((a, b) => a.middle - b.middle);
  const place = rows.indexOf(at);
  const to = {
    ArrowLeft: at.parent, ArrowRight: at.children?.find((child) => child.data.kind === "accepted") ?? at.children?.[0],
    ArrowUp: rows[place - 1], ArrowDown: rows[place + 1],
  };
  if (!(event.key in to)) return;
  event.preventDefault();
  event.stopPropagation();
  if (!to[event.key]) return;
  at.made.setAttribute("tabindex", -1);
  to[event.key].made.setAttribute("tabindex", 0);
  to[event.key].made.focus();
}

// --- One node

function verdict(view, { node, kind }) {
  const { round, result } = view, parent = node > 0 ? round.parent[node] : -1;
  if (kind === "root") return "the last token of the text; the round starts here.";
  if (kind === "bonus") return "written by the target itself; the draft did not propose it.";
  if (kind === "accepted") return `kept${reason(view, node)}. Accepted: it is the target’s own choice.`;
  if (kind === "missed") return `pruned${reason(view, node)}. It was the target’s choice: keeping it would have gained a token.`;
  if (kind === "faint") return `pruned${reason(view, node)}.`;
  const walked = [0, ...result.path], place = walked.indexOf(parent) + 1;
  const chosen = place < walked.length ? round.token[walked[place]] : result.next;
  const why = place ? `the target chose “${tokenText(chosen)}” here` : "its parent was not accepted";
  return `kept${reason(view, node)}. Rejected: ${why}.`;
}

function reason(view, node) {
  const { policy, round, result } = view, { width, N } = policy.limits, kept = result.kept[node], value = decimal(round.confidence[node]);
  const name = policy.classifier ? "confidence" : "joint probability";
  if (policy.threshold !== null) {
    const threshold = view.moved ?? policy.threshold, least = `${policy.classifier ? "beta " : "the threshold "}${decimal(threshold)}`;
    if (kept) return `: ${name} ${value} ≥ ${least}`;
    if (round.confidence[node] < threshold) return `: ${name} ${value} < ${least}`;
    return result.kept[round.parent[node]] ? `: ${name} ${value} ≥ ${least}, but not among the ${width} best of its level` : ": its parent was pruned";
  }
  const best = N ? [...round.kept.keys()].filter((i) => i && round.kept[i]) : [];
  if (!best.length) return "";
  const least = Math.min(...best.map((i) => round.confidence[i]));
  return kept ? `: among the ${best.length} most probable paths` : `: joint probability ${value}, and ${decimal(least)} was the least of the ${best.length} kept`;
}

// Show a node's numbers beside the tree.
function describe(view, node) {
  const at = view.nodes.get(node), { round } = view;
  if (!at) return;
  for (const made of document.querySelectorAll(".node.shown")) made.classList.remove("shown");
  at.made.classList.add("shown");
  $("node").textContent = tokenText(at.data.token);
  const facts = [["token id", String(at.data.token)]];
  if (node > 0) {
    const family = round.children[round.parent[node]];
    facts.push(
      ["draft, this token", percent(Math.exp(round.logProb[node]))],
      ["draft, whole path", percent(Math.exp(round.logJoint[node]))],
      ["rank", `${round.rank[node] + 1} of ${family.length}`],
      ["depth", String(round.depth[node])],
      ["entropy", Number.isNaN(round.entropy[node]) ? "not known" : `${round.entropy[node].toFixed(2)} nats`],
    );
    if (view.policy.classifier) facts.push(["confidence", decimal(round.confidence[node])]);
    if (view.policy.threshold !== null) facts.push([view.policy.classifier ? "beta" : "threshold", decimal(view.moved ?? view.policy.threshold)]);
    facts.push(["target, this token", percent(Math.exp(round.target[node]))]);
  }
  if (node >= 0) facts.push(["candidates below", round.expanded[node] ? String(round.children[node].length) : "none drafted"]);
  const said = verdict(view, at.data);
  $("facts").replaceChildren(
    ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
    element("dd", { class: "verdict" }, said[0].toUpperCase() + said.slice(1)),
  );
  drawKey(view.policy);
}

function drawKey(policy) {
  const [name, low, high] = policy.classifier ? ["Confidence of the classifier", "0", "1"] : ["Joint probability (logarithmic)", "0.001", "1"];
  const ends = element("div", { class: "ends" }, element("span", {}, low), element("span", {}, high));
  const item = (kind, text) => element("li", { class: kind }, element("span"), text);
  $("key").replaceChildren(
    name, element("div", { class: "ramp" }), ends,
    element("ul", {}, item("kept", "verified by the target"), item("accepted", "accepted"), item("faint", "drafted, then pruned"),
      item("bonus", "the target’s own token")),
    "1 of 15: kept of drafted; +15: drafted below, not drawn",
  );
}

// --- Controls

function play(on) {
  clearInterval(playing);
  playing = on ? setInterval(() => (current + 1 < doc.policies[0].rounds.length ? go(current + 1) : play(false)), SECOND) : 0;
  $("play").textContent = on ? "Pause" : "Play";
  $("play").setAttribute("aria-pressed", String(on));
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").setAttribute("aria-pressed", String(dark));
}

function follow(address) {
  const events = new EventSource(address);
  events.addEventListener("message", (event) => {
    const { policy, first, round, texts } = JSON.parse(event.data), last = current >= doc.policies[0].rounds.length - 1;
    Object.assign(doc.texts, texts);
    if (first) doc.policies[policy].first = first;
    if (round) doc.policies[policy].rounds.push(round);
    refresh();
    go(last && policy === 0 ? doc.policies[0].rounds.length - 1 : current);
  });
  events.addEventListener("end", () => {
    events.close();
    document.body.dataset.live = "";
    refresh();
    show();
  });
}

function refresh() {
  drawText();
  drawBars();
  drawTotals();
  const decoding = document.body.dataset.live ? ", decoding …" : "";
  $("what").textContent = `${doc.pair}, T = ${doc.temperature}${decoding}`;
}

function start() {
  document.title = `c2t: ${doc.prompt.slice(0, 60)}`;
  views.forEach(makeFigure);
  $("stage").classList.toggle("two", views.length > 1);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  $("theme").setAttribute("aria-pressed", String(dark.matches));
  $("theme").addEventListener("click", () => theme($("theme").getAttribute("aria-pressed") !== "true"));
  $("play").addEventListener("click", () => play(!playing));
  $("slider").addEventListener("input", () => go(Number($("slider").value) - 1));
  $("pruned").addEventListener("change", show);
  for (const id of ["answer", "bars"]) {
    $(id).addEventListener("click", (event) => {
      const round = event.target.closest("[data-round]");
      if (round) go(Number(round.dataset.round));
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, button") || event.ctrlKey || event.metaKey || event.altKey) return;
    const to = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: Infinity }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    go(to);
  });
  refresh();
  go(document.body.dataset.live ? 0 : longestRound());
  if (document.body.dataset.live) follow(document.body.dataset.live);
}

start();
