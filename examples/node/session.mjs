// A toy engine: three requests with different processors generate over one session.
//
//     node session.mjs [HOST:PORT]

import { builtin, connect } from "./client.mjs";
import { EngineSession } from "./engine_session.mjs";

const VOCAB_SIZE = 64;
const STEPS = 24;
const PROMPT = [1, 2, 3];

/** Simulates a model's forward pass: scores that depend on each row's last token. */
function forward(lastTokenIds) {
  const logits = new Float32Array(lastTokenIds.length * VOCAB_SIZE);
  lastTokenIds.forEach((last, row) => {
    for (let id = 0; id < VOCAB_SIZE; id++) logits[row * VOCAB_SIZE + id] = ((last * 31 + id * 17) % 101) / 8;
  });
  return logits;
}

function greedy(logits, row) {
  const scores = logits.subarray(row * VOCAB_SIZE, (row + 1) * VOCAB_SIZE);
  return scores.reduce((best, score, id) => (score > scores[best] ? id : best), 0);
}

const client = connect(process.argv[2] ?? "127.0.0.1:50051");
const session = await EngineSession.open(client, { vocab_size: VOCAB_SIZE, engine: "toy 1.0" });

const banning = builtin("disallowed_tokens", { token_ids: [5, 40, 41, 42] });
const unrepeating = builtin("no_repeat_ngram", { ngram_size: 2 });
const add = (request_id, processors) => session.add({ request_id, prompt_token_ids: PROMPT, processors });
const plain = await add("plain", []);
const banned = await add("banned", [banning]);
const both = await add("both", [banning, unrepeating]);

let sampled = new Map([plain, banned, both].map((handle) => [handle, []]));
for (let i = 0; i < STEPS; i++) {
  if (i === STEPS / 2) {
    await session.remove(plain);
    sampled.delete(plain);
  }
  const step = session.step(sampled); // the server computes edits ...
  const logits = forward([...sampled.values()].map((tokenIds) => tokenIds.at(-1) ?? PROMPT.at(-1))); // ... meanwhile
  const { failures, applied } = await step.apply(logits);
  for (const [handle, error] of failures) throw new Error(`${handle.requestId} failed`, { cause: error });

  sampled = new Map([...sampled.keys()].map((handle, row) => [handle, [greedy(logits, row)]]));
  const byId = Object.fromEntries([...sampled].map(([handle, [id]]) => [handle.requestId, id]));
  console.log(JSON.stringify({ step: i, sampled: byId, applied }));
}
await session.end();
client.close();
