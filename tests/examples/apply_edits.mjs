// Reads cases from stdin, {message, rows, vocab_size, logits}, and prints the result of edits.mjs for each: the logits,
// or an error message. Columns and logits are base64.

import { text } from "node:stream/consumers";
import { fromColumn, toColumn } from "../../examples/node/columns.mjs";
import { applyEdits, readEdits } from "../../examples/node/edits.mjs";

const unpack = (base64) => Buffer.from(base64, "base64");

function answer({ message, rows, vocab_size, logits }) {
  const scores = fromColumn(unpack(logits), Float32Array, "logits");
  try {
    const columns = Object.fromEntries(Object.entries(message).map(([name, column]) => [name, unpack(column)]));
    applyEdits(readEdits(columns, rows, vocab_size), scores, vocab_size);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return { refused: error.message };
  }
  return { logits: toColumn(scores).toString("base64") };
}

console.log(JSON.stringify(JSON.parse(await text(process.stdin)).map(answer)));
