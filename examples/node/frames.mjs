// Frames of a session: its requests, and the ids appended to their histories.

import { crc32 } from "node:zlib";
import { toColumn, toTokenIds } from "./columns.mjs";

/** A request of a session, with the history that was sent to the server. */
export class Handle {
  #request;
  #promptTokenIds;
  #outputTokenIds = [];

  /**
   * @param {number} slot its place in the session
   * @param {number} generation distinguishes successive requests in the same slot
   * @param {object} request a Request
   */
  constructor(slot, generation, request) {
    this.#request = request;
    this.#promptTokenIds = [...(request.prompt_token_ids ?? [])];
    this.slot = slot;
    this.generation = generation;
    this.requestId = request.request_id ?? "";
    /** Whether the server edits the logits of this request itself. */
    this.readsLogits = false;
    /** Whether the state of its processors follows from the history, although they read logits. */
    this.followsFromHistory = false;
    /** Whether logits of it were sent to a server, which may have state that does not follow from the history. */
    this.hasSentLogits = false;
    /** The error with which it fails in all steps; null if the server holds it. */
    this.lost = null;
    this.length = 0; // of the history, prompt and output, in tokens
    this.crc = 0; // of the history, as Step.history_crcs has it
    this.#extend(this.#promptTokenIds);
    this.append(request.output_token_ids ?? []);
  }

  /** Adds output ids, oldest first. */
  append(tokenIds) {
    this.#outputTokenIds.push(...tokenIds);
    this.#extend(tokenIds);
  }

  /**
   * Cuts the history back to `length` ids, but not into its prompt.
   * @throws {RangeError} a length below the prompt's, or above the history's
   */
  rewind(length) {
    const prompt = this.#promptTokenIds.length;
    if (!Number.isInteger(length) || length < prompt || length > this.length) {
      throw new RangeError(`a history of ${this.length} ids, ${prompt} in its prompt, cannot be cut to ${length}`);
    }
    this.#outputTokenIds.length = length - prompt;
    this.length = this.crc = 0;
    this.#extend(this.#promptTokenIds);
    this.#extend(this.#outputTokenIds);
  }

  /** Keeps what the server has stated when it admitted the request, with names resolved to digests. */
  admitted(readsLogits, chain) {
    this.readsLogits = readsLogits;
    this.followsFromHistory = chain?.follows_from_history ?? false;
    const processors = (this.#request.processors ?? []).map((call, i) =>
      call.processor.name && chain?.processors[i] ? { ...call, processor: { digest: chain.processors[i] } } : call,
    );
    this.#request = { ...this.#request, processors };
  }

  /** The SlottedRequest that adds it with its current history. */
  toMessage() {
    const request = { ...this.#request, prompt_token_ids: this.#promptTokenIds, output_token_ids: this.#outputTokenIds };
    return { slot: this.slot, generation: this.generation, request };
  }

  #extend(tokenIds) {
    if (tokenIds.length === 0) return; // for no bytes, zlib's crc32 returns its initial value
    this.length += tokenIds.length;
    this.crc = crc32(toColumn(Int32Array.from(tokenIds)), this.crc);
  }
}

/**
 * What a step has besides its new ids.
 * @typedef {object} Layout
 * @property {Handle[]} handles
 * @property {number[][]} drafts of each request
 * @property {(number[] | null)[]} parents of the drafts of each request; null for a chain
 * @property {[number, number][] | null} rows request and draft offset of each row; null for row i of request i
 * @property {number} rowCount
 */

/**
 * Reads and checks the layout of a step.
 * @param {Handle[]} handles
 * @param {number} vocabSize
 * @param {{drafts?: Map<Handle, number[]>, draftParents?: Map<Handle, number[]>, rows?: [Handle, number][]}} options
 * @returns {Layout}
 * @throws {RangeError} a draft, a parent or a row that is wrong
 */
export function layoutOf(handles, vocabSize, { drafts = new Map(), draftParents = new Map(), rows } = {}) {
  const ownDrafts = handles.map((handle) => [...toTokenIds(drafts.get(handle) ?? [], vocabSize)]);
  const parents = handles.map((handle, i) => {
    const own = draftParents.get(handle) ?? null;
    const isTree = own?.length === ownDrafts[i].length && own.every((parent, draft) => parent >= -1 && parent < draft);
    if (own !== null && !isTree) throw new RangeError(`draftParents ${own} of ${ownDrafts[i].length} drafts`);
    return own;
  });
  const given = rows?.map(([handle, offset]) => {
    const request = handles.indexOf(handle);
    if (!(offset >= 0 && offset <= ownDrafts[request]?.length)) throw new RangeError(`row ${offset} of no draft`);
    return [request, offset];
  });
  const isPlain = given === undefined && ownDrafts.every((own) => own.length === 0);
  const all = given ?? ownDrafts.flatMap((own, request) => [0, ...own].map((_, offset) => [request, offset]));
  return { handles, drafts: ownDrafts, parents, rows: isPlain ? null : all, rowCount: all.length };
}

/**
 * The Step message: length and checksum of each history before its new ids, the new ids, drafts and rows.
 * @param {Layout} layout
 * @param {number[][]} newIds of each request
 * @param {number} vocabSize
 * @throws {RangeError} a token id is not in [0, vocabSize)
 */
export function stepFrame({ handles, drafts, parents, rows }, newIds, vocabSize) {
  const int32 = (values) => toColumn(Int32Array.from(values));
  const frame = {
    slots: int32(handles.map((handle) => handle.slot)),
    generations: int32(handles.map((handle) => handle.generation)),
    base_lengths: int32(handles.map((handle) => handle.length)),
    history_crcs: toColumn(Uint32Array.from(handles, (handle) => handle.crc)),
    new_token_counts: int32(newIds.map((tokenIds) => tokenIds.length)),
    new_token_ids: toColumn(toTokenIds(newIds.flat(), vocabSize)),
  };
  if (rows !== null) {
    frame.row_requests = int32(rows.map(([request]) => request));
    frame.row_draft_offsets = int32(rows.map(([, offset]) => offset));
  }
  if (drafts.some((own) => own.length > 0)) {
    frame.draft_counts = int32(drafts.map((own) => own.length));
    frame.draft_token_ids = int32(drafts.flat());
  }
  if (parents.some((own) => own !== null)) {
    frame.draft_parents = int32(drafts.flatMap((own, i) => parents[i] ?? own.map((_, draft) => draft - 1)));
  }
  return frame;
}

/** The RemoveRequests message for these handles. */
export function removeFrame(handles) {
  return {
    slots: toColumn(Int32Array.from(handles, (handle) => handle.slot)),
    generations: toColumn(Int32Array.from(handles, (handle) => handle.generation)),
  };
}
