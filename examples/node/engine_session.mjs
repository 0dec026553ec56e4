// One engine's persistent batch: requests are added and removed, and each step returns edits for their rows.

import { once } from "node:events";
import { LogitportError, fromStatus, fromTensor, toTensor } from "./client.mjs";
import { fromColumn, toTokenIds } from "./columns.mjs";
import { applyEdits, readEdits } from "./edits.mjs";
import { Handle, removeFrame, stepFrame } from "./frames.mjs";

/**
 * Result of a step.
 * @typedef {object} StepResult
 * @property {Map<Handle, LogitportError>} failures requests that failed: end them; their rows are unspecified
 * @property {Map<Handle, LogitportError>} skipped requests with on_error `skip` that failed; their rows are unchanged
 * @property {Record<string, number>} applied rows by processor
 */

export class EngineSession {
  #call;
  #vocabSize;
  #seq = 0;
  #waiting = []; // {resolve, reject} of each frame without a reply, oldest first
  #broken = null; // why no more frames can be sent
  #freeSlots = [];
  #generation = 0;
  #pending = new Map(); // slot -> {handle, resolve, reject} of each request that is admitted in the background

  /**
   * Opens a session. Call `end` after use.
   * @param {object} client from connect()
   * @param {{vocab_size: number, engine?: string}} opening an OpenSession; logits are FP32
   * @returns {Promise<EngineSession>}
   * @throws {LogitportError} the server rejects the OpenSession
   */
  static async open(client, opening) {
    const session = new EngineSession(client, opening.vocab_size);
    const { opened } = await session.#exchange({ open: { ...opening, datatype: "FP32" } });
    session.#freeSlots = Array.from({ length: opened.max_requests }, (_, slot) => slot).reverse();
    return session;
  }

  /** For `open`. */
  constructor(client, vocabSize) {
    this.#vocabSize = vocabSize;
    this.#call = client.Session();
    this.#call.on("data", (reply) => this.#receive(reply));
    this.#call.on("error", (status) => this.#break(fromStatus(status)));
    this.#call.on("end", () => this.#break(new Error("the session has ended")));
  }

  /**
   * Admits a request, with its whole history.
   * @param {object} request a Request
   * @returns {Promise<Handle>}
   * @throws {LogitportError} the request is refused: an unknown processor, bad parameters, ...
   * @throws {RangeError} a token id outside the vocabulary, or no slot is free; nothing was sent
   */
  async add(request) {
    const handle = this.#newHandle(request);
    try {
      await this.#admit([handle]);
    } catch (error) {
      this.#freeSlots.push(handle.slot);
      throw error;
    }
    return handle;
  }

  /**
   * Admits a request while the session makes its steps. Call `poll` from time to time if it makes none.
   * @param {object} request a Request
   * @returns {Promise<Handle>} resolves when the request can take part in the next step
   * @throws as `add`
   */
  async addInBackground(request) {
    const handle = this.#newHandle(request);
    const admitted = new Promise((resolve, reject) => this.#pending.set(handle.slot, { handle, resolve, reject }));
    admitted.catch(() => {}); // also reported below, if the frame itself fails
    try {
      const { added } = await this.#exchange({ add: { requests: [handle.toMessage()], in_background: true } });
      if (!added.pending[0]) this.#settle(handle, added.failures[0]?.error); // built-ins
    } catch (error) {
      this.#pending.delete(handle.slot);
      this.#freeSlots.push(handle.slot);
      throw error;
    }
    return admitted;
  }

  /** Receives the admissions in the background that have ended. Steps do that by themselves. */
  async poll() {
    if (this.#pending.size > 0) await this.#exchange({ add: { in_background: true } });
  }

  /**
   * Sends the sampled ids. Returns immediately, so that the model runs while the server works. Apply one step before
   * you begin the next.
   * @param {Map<Handle, number[]>} newTokenIds for each request, in the order of the rows of the logits, the ids
   *     appended since its last step; none in its first step
   * @returns {{apply: (logits: Float32Array) => Promise<StepResult>}} `apply` processes logits, [requests, vocabSize],
   *     in place
   * @throws {RangeError} a token id outside the vocabulary; nothing was sent
   */
  step(newTokenIds) {
    const handles = [...newTokenIds.keys()];
    const reply = this.#exchange({ step: stepFrame(newTokenIds, this.#vocabSize) });
    reply.catch(() => {}); // apply reports the error
    for (const [handle, tokenIds] of newTokenIds) handle.append(tokenIds);
    return { apply: (logits) => this.#apply(handles, reply, logits) };
  }

  /** Removes a request and its state. */
  async remove(handle) {
    await this.#exchange({ remove: removeFrame([handle]) });
    this.#freeSlots.push(handle.slot);
  }

  /** Ends the session; the server drops its requests. */
  async end() {
    if (this.#broken) return;
    this.#call.end();
    await once(this.#call, "status");
  }

  async #apply(handles, reply, logits) {
    if (logits.length !== handles.length * this.#vocabSize) {
      throw new RangeError(`${logits.length} logits for ${handles.length} rows of ${this.#vocabSize}`);
    }
    let { edits: answer } = await reply;
    if (answer.failures.some(isOutOfSync)) answer = await this.#synchronise(handles, answer.failures);
    const edits = readEdits(answer.edits, handles.length, this.#vocabSize);
    const logitsRows = fromColumn(answer.logits_rows, Int32Array, "StepEdits.logits_rows");
    const parts = [answer];
    if (logitsRows.length > 0) parts.push(await this.#processOnServer(logitsRows, logits));
    applyEdits(edits, logits, this.#vocabSize);
    return stepResult(handles, parts);
  }

  /** Sends the histories that differ from the server's, then repeats the step without new ids. */
  async #synchronise(handles, failures) {
    const slots = new Set(failures.filter(isOutOfSync).map((failure) => failure.slot));
    await this.#admit(handles.filter((handle) => slots.has(handle.slot)));
    const nothingNew = new Map(handles.map((handle) => [handle, []]));
    return (await this.#exchange({ step: stepFrame(nothingNew, this.#vocabSize) })).edits;
  }

  /** Has the server process the rows whose processors read logits. */
  async #processOnServer(rows, logits) {
    const size = this.#vocabSize;
    const outside = rows.find((row) => row < 0 || (row + 1) * size > logits.length);
    if (outside !== undefined) throw new RangeError(`StepEdits.logits_rows: row ${outside} is not of this step`);
    const chosen = new Float32Array(rows.length * size);
    rows.forEach((row, i) => chosen.set(logits.subarray(row * size, (row + 1) * size), i * size));
    const { logits: answer } = await this.#exchange({ logits: { logits: toTensor(chosen, size) } });
    const processed = fromTensor(answer.logits, rows.length, size);
    rows.forEach((row, i) => logits.set(processed.subarray(i * size, (i + 1) * size), row * size));
    return answer;
  }

  #newHandle(request) {
    toTokenIds([...(request.prompt_token_ids ?? []), ...(request.output_token_ids ?? [])], this.#vocabSize);
    if (this.#freeSlots.length === 0) throw new RangeError("all slots are taken: remove requests that have ended");
    return new Handle(this.#freeSlots.pop(), this.#generation++, request);
  }

  /** Ends an admission in the background; `error` is null if the request was admitted. */
  #settle({ slot, generation }, error) {
    const pending = this.#pending.get(slot);
    if (pending?.handle.generation !== generation) return;
    this.#pending.delete(slot);
    if (error) {
      this.#freeSlots.push(slot);
      pending.reject(new LogitportError(error));
    } else {
      pending.resolve(pending.handle);
    }
  }

  async #admit(handles) {
    const { added } = await this.#exchange({ add: { requests: handles.map((handle) => handle.toMessage()) } });
    for (const failure of added.failures) throw new LogitportError(failure.error);
  }

  /** Sends a frame. Returns a promise of its reply. */
  #exchange(frame) {
    return new Promise((resolve, reject) => {
      if (this.#broken) throw this.#broken;
      this.#waiting.push({ resolve, reject });
      this.#call.write({ seq: ++this.#seq, ...frame });
    });
  }

  #receive(reply) {
    const { resolve, reject } = this.#waiting.shift();
    for (const ended of reply.added?.ended ?? []) this.#settle(ended, ended.error);
    if (reply.edits?.ended_admissions > 0) this.poll().catch(() => {}); // the next frame reports what broke
    if (reply.frame === "error") reject(new LogitportError(reply.error));
    else resolve(reply);
  }

  #break(error) {
    this.#broken ??= error;
    for (const { reject } of this.#waiting.splice(0)) reject(this.#broken);
    for (const { reject } of this.#pending.values()) reject(this.#broken);
    this.#pending.clear();
  }
}

function stepResult(handles, parts) {
  const bySlot = new Map(handles.map((handle) => [handle.slot, handle]));
  const result = { failures: new Map(), skipped: new Map(), applied: {} };
  for (const part of parts) {
    for (const { slot, skipped, error } of part.failures) {
      (skipped ? result.skipped : result.failures).set(bySlot.get(slot), new LogitportError(error));
    }
    for (const { processor, rows } of part.applied) {
      result.applied[processor] = (result.applied[processor] ?? 0) + rows;
    }
  }
  return result;
}

function isOutOfSync(failure) {
  return failure.error.code === "ERROR_CODE_NEED_SYNC";
}
