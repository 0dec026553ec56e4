// The package's exports.

export { LogitportError, apply, builtin, connect, contract, fromTensor, toTensor } from "./client.mjs";
export { ConnectionLost } from "./connection.mjs";
export { EditKind, applyEdits, readEdits } from "./edits.mjs";
export { EngineSession } from "./engine_session.mjs";
export { Handle } from "./frames.mjs";
