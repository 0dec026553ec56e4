// One engine's persistent batch: requests are added and removed, and each step returns edits for their rows.

import { setTimeout as pause } from "node:timers/promises";
import { LogitportError, fromTensor, toTensor } from "./client.mjs";
import { fromColumn, toTokenIds } from "./columns.mjs";
import { Connection, ConnectionLost } from "./connection.mjs";
import { applyEdits, readEdits } from "./edits.mjs";
import { Handle, layoutOf, removeFrame, stepFrame } from "./frames.mjs";

const TIMEOUT_SECONDS = 60;
const FIRST_PAUSE_MS = 50;
const MAX_PAUSE_MS = 1000;

/**
 * Result of a step.
 * @typedef {object} StepResult
 * @property {Map<Handle, LogitportError>} failures requests that failed: end them; their rows are unspecified
 * @property {Map<Handle, LogitportError>} skipped requests with on_error `skip` that failed; their rows are unchanged
 * @property {Record<string, number>} applied rows by processor
 * @property {number[]} allDeniedRows rows in which edits have denied every id: do not sample from them
 * @property {{handle: Handle, processor: string, position: number, name: string, values: object}[]} events
 */

export class EngineSession {
  #client;
  #opening;
  #vocabSize;
  #timeout;
  #reconnectSeconds;
  #connection = null;
  #recovering = null; // promise of a reconnect that runs
  #hasEnded = false;
  #held = new Map(); // slot -> handle of each admitted request
  #freeSlots = [];
  #generation = 0;
  #pending = new Map(); // slot -> {handle, resolve, reject} of each request that is admitted in the background
  /** Number of reconnects. */
  reconnects = 0;
  /** How often a history was sent again because the server's differed. */
  resyncs = 0;

  /**
   * Opens a session. Call `end` after use.
   * @param {object} client from connect()
   * @param {{vocab_size: number, engine?: string, max_draft_tokens?: number}} opening an OpenSession; logits are FP32
   * @param {{timeoutSeconds?: number, reconnectSeconds?: number}} options how long to wait for a reply, whatever the
   *     server's own deadlines are; how long a call tries to reconnect, as long as a reply by default, 0 for never
   * @returns {Promise<EngineSession>}
   * @throws {LogitportError} the server rejects the OpenSession
   */
  static async open(client, opening, options = {}) {
    const session = new EngineSession(client, opening, options);
    const opened = await session.#connect(false);
    session.#freeSlots = Array.from({ length: opened.max_requests }, (_, slot) => slot).reverse();
    return session;
  }

  /** For `open`. */
  constructor(client, opening, { timeoutSeconds = TIMEOUT_SECONDS, reconnectSeconds = timeoutSeconds }) {
    this.#client = client;
    this.#opening = { ...opening, datatype: "FP32" };
    this.#vocabSize = opening.vocab_size;
    this.#timeout = timeoutSeconds;
    this.#reconnectSeconds = reconnectSeconds;
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
      const [error] = await this.#withReconnect(() => this.#admit([handle]));
      if (error) throw error;
    } catch (error) {
      this.#freeSlots.push(handle.slot);
      throw error;
    }
    this.#held.set(handle.slot, handle);
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
      const connection = this.#connection;
      await this.#withReconnect(async () => {
        // A reconnect has added the pending requests already.
        if (this.#connection === connection) await this.#beginAdmissions([handle]);
      });
    } catch (error) {
      this.#pending.delete(handle.slot);
      this.#freeSlots.push(handle.slot);
      throw error;
    }
    return admitted;
  }

  /** Receives the admissions in the background that have ended. Steps do that by themselves. */
  async poll() {
    if (this.#pending.size > 0) await this.#withReconnect(() => this.#exchange({ add: { in_background: true } }));
  }

  /**
   * Sends the sampled ids. Returns immediately, so that the model runs while the server works. Apply one step before
   * you begin the next.
   * @param {Map<Handle, number[]>} newTokenIds for each request the ids appended since its last step; none in its first
   *     step
   * @param {object} options
   * @param {Map<Handle, number[]>} options.drafts ids that a speculating engine has not accepted yet
   * @param {Map<Handle, number[]>} options.draftParents for each draft the index of the draft that it follows, less than
   *     its own; -1 if it follows the history. By default each follows the one before it
   * @param {[Handle, number][]} options.rows handle and draft offset of each row of the logits. By default the requests
   *     in order, each with a row, and one more for each of its drafts
   * @returns {{rowCount: number, apply: (logits: Float32Array) => Promise<StepResult>}} `apply` processes logits,
   *     [rowCount, vocabSize], in place
   * @throws {RangeError} a token id outside the vocabulary, or a wrong parent or row; nothing was sent
   */
  step(newTokenIds, options = {}) {
    const layout = layoutOf([...newTokenIds.keys()], this.#vocabSize, options);
    const frame = stepFrame(layout, [...newTokenIds.values()], this.#vocabSize);
    const connection = this.#connection;
    const reply = this.#exchange({ step: frame });
    reply.catch(() => {}); // apply reports the error
    for (const [handle, tokenIds] of newTokenIds) handle.append(tokenIds);
    return { rowCount: layout.rowCount, apply: (logits) => this.#apply(layout, { connection, reply }, logits) };
  }

  /**
   * Cuts the history of a request back to `length` ids, but not into its prompt. The next step tells the server.
   * @throws {RangeError} a length below the prompt's, or above the history's
   */
  rewind(handle, length) {
    handle.rewind(length);
  }

  /** Removes a request and its state. */
  async remove(handle) {
    if (this.#held.get(handle.slot) !== handle) return;
    this.#held.delete(handle.slot);
    try {
      if (handle.lost === null) await this.#exchange({ remove: removeFrame([handle]) });
    } catch (error) {
      if (!(error instanceof ConnectionLost)) throw error; // the next server does not get it
    }
    this.#freeSlots.push(handle.slot);
  }

  /** Ends the session; the server drops its requests. */
  async end() {
    this.#hasEnded = true;
    await this.#connection.close();
    this.#rejectPending(new Error("the session has ended"));
  }

  async #apply(layout, sent, logits) {
    const size = this.#vocabSize;
    if (logits.length !== layout.rowCount * size) {
      throw new RangeError(`${logits.length} logits for ${layout.rowCount} rows of ${size}`);
    }
    // The logits are sent on the connection that has requested them.
    const { answer, logitsRows, processed } = await this.#withReconnect(async () => {
      const found = await this.#synchronised(layout, sent);
      const rows = fromColumn(found.logits_rows, Int32Array, "StepEdits.logits_rows");
      return { answer: found, logitsRows: rows, processed: rows.length > 0 ? this.#send(rows, logits) : null };
    });
    const edits = readEdits(answer.edits, layout.rowCount, size);
    const parts = [answer];
    if (processed !== null) parts.push(await this.#receive(layout, logitsRows, processed, logits));
    applyEdits(edits, logits, size);
    return stepResult(layout.handles, parts);
  }

  /** The reply to a step, once the server has the histories of all its requests. */
  async #synchronised(layout, sent) {
    if (sent.connection !== this.#connection) this.#repeat(layout, sent);
    let { edits } = await sent.reply;
    const slots = new Set(edits.failures.filter(isOutOfSync).map((failure) => failure.slot));
    const handles = layout.handles.filter((handle) => slots.has(handle.slot) && handle.lost === null);
    if (handles.length > 0) {
      this.resyncs += handles.length;
      await this.#addAgain(handles);
      this.#repeat(layout, sent);
      ({ edits } = await sent.reply);
    }
    return edits;
  }

  /** Sends the step again, without new ids: the histories include them. */
  #repeat(layout, sent) {
    const frame = stepFrame(layout, layout.handles.map(() => []), this.#vocabSize);
    sent.connection = this.#connection;
    sent.reply = this.#exchange({ step: frame });
    sent.reply.catch(() => {}); // whoever awaits it reports the error
  }

  /** Sends the rows that processors on the server read. Returns a promise of the reply. */
  #send(rows, logits) {
    const size = this.#vocabSize;
    const outside = rows.find((row) => row < 0 || (row + 1) * size > logits.length);
    if (outside !== undefined) throw new RangeError(`StepEdits.logits_rows: row ${outside} is not of this step`);
    const chosen = new Float32Array(rows.length * size);
    rows.forEach((row, i) => chosen.set(logits.subarray(row * size, (row + 1) * size), i * size));
    const reply = this.#exchange({ logits: { logits: toTensor(chosen, size) } });
    reply.catch(() => {}); // the caller awaits it
    return { connection: this.#connection, reply };
  }

  /** Takes the processed rows. If the connection is lost meanwhile, the state of their requests may be lost with it. */
  async #receive(layout, rows, { reply }, logits) {
    const size = this.#vocabSize;
    const handles = Array.from(rows, (row) => layout.handles[layout.rows?.[row][0] ?? row]);
    for (const handle of handles) handle.hasSentLogits = !handle.followsFromHistory;
    try {
      const { logits: answer } = await reply;
      const processed = fromTensor(answer.logits, rows.length, size);
      rows.forEach((row, i) => logits.set(processed.subarray(i * size, (i + 1) * size), row * size));
      return answer;
    } catch (error) {
      if (!(error instanceof ConnectionLost)) throw error;
      for (const handle of handles) handle.lost = stateLost(handle, error);
      return { failures: [], applied: [], events: [], all_denied_rows: Buffer.alloc(0) };
    }
  }

  #newHandle(request) {
    toTokenIds([...(request.prompt_token_ids ?? []), ...(request.output_token_ids ?? [])], this.#vocabSize);
    if (this.#freeSlots.length === 0) throw new RangeError("all slots are taken: remove requests that have ended");
    return new Handle(this.#freeSlots.pop(), this.#generation++, request);
  }

  /** Ends an admission in the background; `error` is null if the request was admitted. */
  #settle({ slot, generation }, error, readsLogits, chain) {
    const pending = this.#pending.get(slot);
    if (pending?.handle.generation !== generation) return;
    this.#pending.delete(slot);
    if (error) {
      this.#freeSlots.push(slot);
      pending.reject(new LogitportError(error));
    } else {
      pending.handle.admitted(readsLogits, chain);
      this.#held.set(slot, pending.handle);
      pending.resolve(pending.handle);
    }
  }

  /** Adds requests. Returns the error of each, or null. */
  async #admit(handles) {
    const { added } = await this.#exchange({ add: { requests: handles.map((handle) => handle.toMessage()) } });
    const failures = new Map(added.failures.map((failure) => [failure.slot, new LogitportError(failure.error)]));
    return handles.map((handle, i) => {
      if (!failures.has(handle.slot)) handle.admitted(added.reads_logits[i] === 1, added.chains[i]);
      return failures.get(handle.slot) ?? null;
    });
  }

  /** Adds held requests again. One that is refused now fails in all steps. */
  async #addAgain(handles) {
    if (handles.length === 0) return;
    const errors = await this.#admit(handles);
    handles.forEach((handle, i) => (handle.lost ??= errors[i]));
  }

  async #beginAdmissions(handles) {
    if (handles.length === 0) return;
    const requests = handles.map((handle) => handle.toMessage());
    const { added } = await this.#exchange({ add: { requests, in_background: true } });
    const failures = new Map(added.failures.map((failure) => [failure.slot, failure.error]));
    handles.forEach((handle, i) => {
      if (added.pending[i]) return;
      this.#settle(handle, failures.get(handle.slot), added.reads_logits[i] === 1, added.chains[i]); // built-ins
    });
  }

  /** Opens a connection. Returns the SessionOpened. */
  async #connect(waits, timeout = this.#timeout) {
    const onReply = (reply) => this.#note(reply);
    this.#connection = new Connection(this.#client, this.#timeout, onReply, waits);
    const timer = setTimeout(() => this.#connection.end(new ConnectionLost("no server in time")), timeout * 1000);
    try {
      return await this.#connection.open(this.#opening);
    } catch (error) {
      this.#connection.end(error);
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  /** Returns the result of `call`; if the connection is lost, reconnects and repeats it. */
  async #withReconnect(call) {
    const deadline = Date.now() + this.#reconnectSeconds * 1000;
    for (;;) {
      const connection = this.#connection;
      try {
        return await call();
      } catch (error) {
        if (this.#hasEnded) throw new Error("the session has ended");
        if (!(error instanceof ConnectionLost)) throw error;
        if (Date.now() >= deadline) {
          this.#rejectPending(error);
          throw error;
        }
        // Several calls may wait for the connection that was lost: one of them replaces it.
        if (this.#connection === connection) {
          this.#recovering ??= this.#recover(deadline).finally(() => (this.#recovering = null));
        }
        await this.#recovering;
      }
    }
  }

  /** Connects again, and adds all requests. Those with a state that does not follow from the history are lost. */
  async #recover(deadline) {
    for (let bound = FIRST_PAUSE_MS; ; bound = Math.min(2 * bound, MAX_PAUSE_MS)) {
      try {
        await this.#connect(true, Math.max(0.1, Math.min(this.#timeout, (deadline - Date.now()) / 1000)));
        this.reconnects++;
        for (const handle of this.#held.values()) {
          if (handle.hasSentLogits) handle.lost ??= stateLost(handle, new Error("the connection was lost"));
        }
        await this.#addAgain([...this.#held.values()].filter((handle) => handle.lost === null));
        await this.#beginAdmissions([...this.#pending.values()].map(({ handle }) => handle));
        return;
      } catch (error) {
        this.#connection.end(new ConnectionLost(error.message)); // a session that lacks requests must not be used
        // A server that is full may still hold the session that was lost.
        const mayPass = error instanceof ConnectionLost || error.code === "ERROR_CODE_LIMIT_EXCEEDED";
        if (!mayPass || Date.now() >= deadline) {
          this.#rejectPending(error);
          throw error;
        }
      }
      await pause(Math.random() * bound); // engines that lost one server return at different moments
    }
  }

  #rejectPending(error) {
    for (const { reject } of this.#pending.values()) reject(error);
    this.#pending.clear();
  }

  /** Sends a frame. Returns a promise of its reply. */
  async #exchange(frame) {
    if (this.#hasEnded) throw new Error("the session has ended");
    return this.#connection.exchange(frame);
  }

  #note(reply) {
    for (const ended of reply.added?.ended ?? []) this.#settle(ended, ended.error, ended.reads_logits, ended.chain);
    if (reply.edits?.ended_admissions > 0) this.poll().catch(() => {}); // the next frame reports what broke
  }
}

function stateLost(handle, cause) {
  return new LogitportError({
    code: "ERROR_CODE_STATE_LOST",
    message: `request '${handle.requestId}': its state was lost; remove it and add it again: ${cause.message}`,
    processor: "",
    remote_traceback: "",
  });
}

function stepResult(handles, parts) {
  const bySlot = new Map(handles.map((handle) => [handle.slot, handle]));
  const result = { failures: new Map(), skipped: new Map(), applied: {}, allDeniedRows: [], events: [] };
  const denied = new Set();
  for (const part of parts) {
    for (const { slot, skipped, error } of part.failures) {
      (skipped ? result.skipped : result.failures).set(bySlot.get(slot), new LogitportError(error));
    }
    for (const { processor, rows } of part.applied) {
      result.applied[processor] = (result.applied[processor] ?? 0) + rows;
    }
    for (const row of fromColumn(part.all_denied_rows, Int32Array, "all_denied_rows")) denied.add(row);
    for (const { slot, processor, position, name, values } of part.events) {
      const event = { processor, position, name, values: values.length > 0 ? JSON.parse(values.toString()) : {} };
      result.events.push({ handle: bySlot.get(slot), ...event });
    }
  }
  for (const handle of handles) if (handle.lost !== null) result.failures.set(handle, handle.lost);
  result.allDeniedRows = [...denied].sort((a, b) => a - b);
  return result;
}

function isOutOfSync(failure) {
  return failure.error.code === "ERROR_CODE_NEED_SYNC";
}
