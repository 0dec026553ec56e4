// Frames of a session: its requests, and the ids appended to their histories.

import { crc32 } from "node:zlib";
import { toColumn, toTokenIds } from "./columns.mjs";

/** A request of a session, with the history that was sent to the server. */
export class Handle {
  #request;
  #outputTokenIds = [];

  /**
   * @param {number} slot its place in the session
   * @param {number} generation distinguishes successive requests in the same slot
   * @param {object} request a Request
   */
  constructor(slot, generation, request) {
    this.#request = request;
    this.slot = slot;
    this.generation = generation;
    this.requestId = request.request_id ?? "";
    this.length = 0; // of the history, prompt and output, in tokens
    this.crc = 0; // of the history, as Step.history_crcs has it
    this.#extend(request.prompt_token_ids ?? []);
    this.append(request.output_token_ids ?? []);
  }

  /** Adds output ids, oldest first. */
  append(tokenIds) {
    this.#outputTokenIds.push(...tokenIds);
    this.#extend(tokenIds);
  }

  /** The SlottedRequest that adds it with its current history. */
  toMessage() {
    const request = { ...this.#request, output_token_ids: this.#outputTokenIds };
    return { slot: this.slot, generation: this.generation, request };
  }

  #extend(tokenIds) {
    if (tokenIds.length === 0) return; // for no bytes, zlib's crc32 returns its initial value
    this.length += tokenIds.length;
    this.crc = crc32(toColumn(Int32Array.from(tokenIds)), this.crc);
  }
}

/**
 * The Step message: length and checksum of each history before its new ids, and the new ids. Row i is request i's.
 * @param {Map<Handle, number[]>} newTokenIds
 * @param {number} vocabSize
 * @throws {RangeError} a token id is not in [0, vocabSize)
 */
export function stepFrame(newTokenIds, vocabSize) {
  const handles = [...newTokenIds.keys()];
  const newIds = [...newTokenIds.values()];
  return {
    slots: toColumn(Int32Array.from(handles, (handle) => handle.slot)),
    generations: toColumn(Int32Array.from(handles, (handle) => handle.generation)),
    base_lengths: toColumn(Int32Array.from(handles, (handle) => handle.length)),
    history_crcs: toColumn(Uint32Array.from(handles, (handle) => handle.crc)),
    new_token_counts: toColumn(Int32Array.from(newIds, (tokenIds) => tokenIds.length)),
    new_token_ids: toColumn(toTokenIds(newIds.flat(), vocabSize)),
  };
}

/** The RemoveRequests message for these handles. */
export function removeFrame(handles) {
  return {
    slots: toColumn(Int32Array.from(handles, (handle) => handle.slot)),
    generations: toColumn(Int32Array.from(handles, (handle) => handle.generation)),
  };
}
