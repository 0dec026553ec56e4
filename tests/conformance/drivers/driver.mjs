// The driver of the JavaScript package: see tests/conformance/driver_process.py. `node driver.mjs TARGET`.

import { createInterface } from "node:readline";
import { ConnectionLost, EngineSession, LogitportError, connect, contract } from "../../../examples/node/index.mjs";

const CODES = Object.fromEntries(contract["logitport.v1.ErrorCode"].type.value.map(({ name, number }) => [name, number]));
const UNAVAILABLE = 100;
const client = connect(process.argv[2]);
const handles = new Map();
let session;
let vocabSize;
let steps = 0;

const ids = (list) => list.split(",").filter(Boolean).map(Number);

function codeOf(error) {
  if (error instanceof ConnectionLost) return UNAVAILABLE;
  if (error instanceof LogitportError) return CODES[error.code];
  if (error instanceof RangeError) return CODES.ERROR_CODE_INVALID_ARGUMENT;
  throw error;
}

function processor(word) {
  const end = word.indexOf("=");
  const name = word.slice(0, end);
  const naming = name.includes("/") ? "name" : name.length === 64 ? "digest" : "builtin";
  return { processor: { [naming]: name }, params: Buffer.from(word.slice(end + 1)) };
}

const commands = {
  async open(size, drafts, eos, timeoutSeconds, reconnectSeconds) {
    vocabSize = Number(size);
    const opening = { vocab_size: vocabSize, max_draft_tokens: Number(drafts), eos_token_ids: ids(eos) };
    const options = { timeoutSeconds: Number(timeoutSeconds), reconnectSeconds: Number(reconnectSeconds) };
    session = await EngineSession.open(client, opening, options);
    return {};
  },

  async add(name, skips, prompt, output, ...chain) {
    const handle = await session.add({
      request_id: name,
      prompt_token_ids: ids(prompt),
      output_token_ids: ids(output),
      processors: chain.map(processor),
      on_error: skips === "1" ? "ON_ERROR_SKIP" : "ON_ERROR_ABORT",
    });
    handles.set(name, handle);
    return { reads_logits: handle.readsLogits };
  },

  async step(...words) {
    const end = words.includes("rows") ? words.indexOf("rows") : words.length;
    const [newIds, drafts, draftParents] = [new Map(), new Map(), new Map()];
    for (const word of words.slice(0, end)) {
      const [name, newList, draftList, parentList] = word.split(":");
      newIds.set(handles.get(name), ids(newList));
      drafts.set(handles.get(name), ids(draftList));
      if (parentList) draftParents.set(handles.get(name), ids(parentList));
    }
    const named = words.slice(end + 1).map((word) => word.split("+"));
    const rows = end < words.length ? named.map(([name, offset]) => [handles.get(name), Number(offset)]) : undefined;
    steps++;
    const step = session.step(newIds, { drafts, draftParents, rows });
    const logits = new Float32Array(step.rowCount * vocabSize);
    for (let i = 0; i < logits.length; i++) {
      logits[i] = ((13 * steps + 31 * Math.floor(i / vocabSize) + 17 * (i % vocabSize)) % 101) / 8 - 4;
    }
    const result = await step.apply(logits);
    const failures = {};
    for (const [kind, skipped] of [["failures", false], ["skipped", true]]) {
      for (const [{ requestId }, error] of result[kind]) {
        failures[requestId] = { code: codeOf(error), skipped, message: error.message };
      }
    }
    const bytes = Buffer.from(logits.buffer);
    const size = vocabSize * 4;
    return {
      logits: Array.from({ length: step.rowCount }, (_, row) => bytes.toString("hex", row * size, (row + 1) * size)),
      failures,
      all_denied_rows: result.allDeniedRows,
      applied: result.applied,
      events: result.events.map(({ handle, processor: key, position, name, values }) => [
        ...[handle.requestId, key, position, name, values],
      ]),
    };
  },

  async remove(...names) {
    for (const name of names) await session.remove(handles.get(name));
    return {};
  },

  async rewind(name, length) {
    session.rewind(handles.get(name), Number(length));
    return {};
  },

  async length(name) {
    return { length: handles.get(name).length };
  },

  async stats() {
    return { reconnects: session.reconnects, resyncs: session.resyncs };
  },

  async close() {
    await session.end();
    client.close();
    return {};
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...words] = line.split(" ");
  const output = await commands[name](...words).catch((error) => ({ error: codeOf(error), message: error.message }));
  console.log(JSON.stringify(output));
  if (name === "close") break;
}
process.stdin.destroy(); // the process ends if the package has left nothing open
