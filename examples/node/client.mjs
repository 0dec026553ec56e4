// The contract in JavaScript: a channel, calls, messages, errors.

import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { fromColumn, toColumn } from "./columns.mjs";

// A packed package has a copy of the .proto files; in the repository they are in a folder of their own.
const [PROTO] = ["./proto", "../../proto"].map((path) => fileURLToPath(new URL(path, import.meta.url))).filter(existsSync);

export const contract = loadSync("logitport/v1/processing.proto", {
  includeDirs: [PROTO],
  keepCase: true, // fields have the names of the .proto files
  longs: Number,
  enums: String,
  defaults: true,
  oneofs: true, // message.frame is the name of the field that is set in the oneof `frame`
});
const { LogitProcessing } = grpc.loadPackageDefinition(contract).logitport.v1;

// gRPC's own limit, 4 MiB, is 8 rows of 128k float32. The server has a limit of its own.
const MAX_MESSAGE_BYTES = 256 * 2 ** 20;
const TIMEOUT_MS = 30_000;

/** An error of the server, or of one of its processors. */
export class LogitportError extends Error {
  /** @param {{code: string, message: string, processor: string, remote_traceback: string}} error */
  constructor({ code, message, processor, remote_traceback }) {
    super(message);
    this.name = "LogitportError";
    /** An ErrorCode, such as "ERROR_CODE_INVALID_ARGUMENT". */
    this.code = code;
    this.processor = processor;
    this.remoteTraceback = remote_traceback;
  }
}

/**
 * Creates a channel to one server. Close it after use.
 * @param {string} target HOST:PORT
 */
export function connect(target) {
  return new LogitProcessing(target, grpc.credentials.createInsecure(), {
    "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
    "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1000,
  });
}

/**
 * Apply: one step, stateless.
 * @param {ReturnType<typeof connect>} client
 * @param {object} request an ApplyRequest
 * @returns {Promise<object>} an ApplyResponse; its `failures` lists the requests that failed
 * @throws {LogitportError} the whole call failed
 */
export function apply(client, request) {
  return new Promise((resolve, reject) => {
    client.Apply(request, { deadline: Date.now() + TIMEOUT_MS }, (status, response) => {
      if (status) reject(fromStatus(status));
      else resolve(response);
    });
  });
}

/**
 * A ProcessorCall of a built-in.
 * @param {string} name such as "disallowed_tokens"
 * @param {object} params
 */
export function builtin(name, params) {
  return { processor: { builtin: name }, params: Buffer.from(JSON.stringify(params)) };
}

/**
 * Logits as a Tensor message.
 * @param {Float32Array} logits [rows, vocabSize], row-major
 * @param {number} vocabSize
 */
export function toTensor(logits, vocabSize) {
  return { datatype: "FP32", shape: [logits.length / vocabSize, vocabSize], raw: toColumn(logits) };
}

/**
 * The logits of a Tensor message.
 * @param {object} tensor
 * @param {number} rowCount expected rows
 * @param {number} vocabSize
 * @returns {Float32Array} [rowCount, vocabSize]
 * @throws {RangeError} another datatype, shape or length
 */
export function fromTensor(tensor, rowCount, vocabSize) {
  const logits = fromColumn(tensor.raw, Float32Array, "Tensor.raw");
  const received = `${tensor.datatype}[${tensor.shape}]`;
  const expected = `FP32[${rowCount},${vocabSize}]`;
  if (received !== expected || logits.length !== rowCount * vocabSize) {
    throw new RangeError(`received ${logits.length} logits as ${received}; expected ${expected}`);
  }
  return logits;
}

/**
 * The error of a failed call: the server's if it sent one, otherwise gRPC's.
 * @param {grpc.StatusObject & Error} status
 * @returns {Error}
 */
export function fromStatus(status) {
  const [serialized] = status.metadata?.get("logitport-error-bin") ?? [];
  return serialized ? new LogitportError(contract["logitport.v1.Error"].deserialize(serialized)) : status;
}
