// Encodes and decodes golden messages with the example's code. Reads entries from stdin, {message, hex, json, columns},
// and prints an array of {hex, json, columns}: the encoded `json`, the decoded `hex`, and the columns in it.

import { text } from "node:stream/consumers";
import { contract } from "../../examples/node/client.mjs";
import { fromColumn } from "../../examples/node/columns.mjs";

const ARRAYS = { int32: Int32Array, uint32: Uint32Array, uint8: Uint8Array, float32: Float32Array };
const ONEOFS = new Set(["by", "frame", "storage"]); // the loader adds them; protobuf's JSON does not have them

/** A decoded message as protobuf's JSON. */
function toJson(value) {
  if (Buffer.isBuffer(value)) return value.toString("base64");
  if (Array.isArray(value)) return value.map(toJson);
  if (value === null || typeof value !== "object") return value;
  const fields = Object.entries(value).filter(([name]) => !ONEOFS.has(name));
  return Object.fromEntries(fields.map(([name, field]) => [name, toJson(field)]));
}

function readColumn(message, path, type) {
  const column = path.split(".").reduce((value, name) => value[name], message);
  return Array.from(fromColumn(column, ARRAYS[type], path));
}

function answer({ message, hex, json, columns }) {
  const { serialize, deserialize } = contract[message];
  const decoded = deserialize(Buffer.from(hex, "hex"));
  return {
    hex: Buffer.from(serialize(json)).toString("hex"),
    json: toJson(decoded),
    columns: Object.fromEntries(
      Object.entries(columns).map(([path, { type }]) => [path, { type, values: readColumn(decoded, path, type) }]),
    ),
  };
}

console.log(JSON.stringify(JSON.parse(await text(process.stdin)).map(answer)));
