// One step without a session: each request has its own list of tokens that it must not sample.
//
//     node apply.mjs [HOST:PORT]

import { apply, builtin, connect, fromTensor, toTensor } from "./client.mjs";

const VOCAB_SIZE = 16;
const DISALLOWED = [[0, 1, 2], [15], []];

const client = connect(process.argv[2] ?? "127.0.0.1:50051");
const logits = Float32Array.from({ length: DISALLOWED.length * VOCAB_SIZE }, (_, i) => ((i * 7) % 32) / 8);

const response = await apply(client, {
  logits: toTensor(logits, VOCAB_SIZE),
  requests: DISALLOWED.map((token_ids, row) => ({
    request_id: `request-${row}`,
    prompt_token_ids: [3, 4, 5],
    processors: [builtin("disallowed_tokens", { token_ids })],
  })),
});

// JSON has no infinity: a token that cannot be sampled shows as null.
const processed = fromTensor(response.logits, DISALLOWED.length, VOCAB_SIZE);
for (let row = 0; row < DISALLOWED.length; row++) {
  const scores = processed.subarray(row * VOCAB_SIZE, (row + 1) * VOCAB_SIZE);
  console.log(JSON.stringify({ row, logits: Array.from(scores) }));
}
console.log(JSON.stringify({ applied: response.applied, failures: response.failures }));
client.close();
