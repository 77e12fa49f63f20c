// Continue prompts with llama.cpp: node llama_cpp.mjs NODE_LLAMA_CPP MODEL.gguf THREADS POSITIONS
//
// Reads a request as a line of JSON from stdin, and writes its answer as a line to stdout, until stdin ends:
//     {"prompt": [1, 2], "limit": 96, "eos": [2], "temperature": 0, "seed": 0, "lookup": 0}
//     {"tokens": [5, 7, 2], "first": 0.1, "seconds": 0.3}
// The first line on stdout names the instruction sets that the processor's build of llama.cpp uses.
import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";

const [library, gguf, threads, positions] = process.argv.slice(2);
const {getLlama, InputLookupTokenPredictor} = await import(pathToFileURL(library));
const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");

// "never": only the binaries that npm has installed. A logger of its own, because stdout is for the answers.
const llama = await getLlama({
    gpu: false, build: "never", maxThreads: Number(threads), logger: (level, message) => console.error(message)
});
const model = await llama.loadModel({modelPath: gguf});
const context = await model.createContext({contextSize: Number(positions), threads: Number(threads)});
say({system: llama.systemInfo});

for await (const line of createInterface({input: process.stdin}))
    say(await answer(JSON.parse(line)));
process.exit(0);

/** Continue a prompt on a clock. Model and context are there before it starts; the prompt's own forward is inside. */
async function answer({prompt, limit, eos, temperature, seed, lookup}) {
    const tokenPredictor = lookup ? new InputLookupTokenPredictor({predictionLength: {max: lookup}}) : undefined;
    tokenPredictor?.updateInputTokens(prompt);
    const sequence = context.getSequence(tokenPredictor ? {tokenPredictor} : {});
    // The target's own law: every token of the vocabulary may be drawn. Which token ends a text the caller says.
    const options = {temperature, seed, topK: 0, topP: 1, minP: 0, yieldEogToken: true};
    const tokens = [], start = performance.now();
    let first = 0;
    for await (const token of sequence.evaluate(prompt, options)) {
        first ||= performance.now() - start;
        tokens.push(token);
        if (tokens.length === limit || eos.includes(token))
            break;
    }
    const seconds = (performance.now() - start) / 1000;
    sequence.dispose();
    return {tokens, first: first / 1000, seconds};
}
