// Edits: changes of a batch's logits, in compressed sparse row form. First read and check, then apply.

import { fromColumn } from "./columns.mjs";

/** `logitport.v1.EditKind`. */
export const EditKind = Object.freeze({ DENY: 1, ALLOW: 2, FORCE: 3, BIAS: 4, BITMASK: 5 });

const KINDS = new Set(Object.values(EditKind));
const MAX_FLOAT32 = 3.4028234663852886e38;

/**
 * One edit, checked.
 * @typedef {object} Edit
 * @property {number} row row of the batch
 * @property {number} kind one of EditKind
 * @property {Int32Array} ids token ids; for a BITMASK, its words
 * @property {Float32Array} values summands of a BIAS; empty for other kinds
 */

/**
 * Reads an Edits message, and checks all of it before anything can be applied.
 * @param {{rows: Buffer, kinds: Buffer, offsets: Buffer, ids: Buffer, values: Buffer} | null} message null for none
 * @param {number} rowCount rows of the batch
 * @param {number} vocabSize width of the logits
 * @returns {Edit[]} in the order in which they apply
 * @throws {RangeError} inconsistent columns, a row outside the batch, an id outside the vocabulary, ...
 */
export function readEdits(message, rowCount, vocabSize) {
  if (message === null) return [];
  const rows = fromColumn(message.rows, Int32Array, "Edits.rows");
  const kinds = fromColumn(message.kinds, Uint8Array, "Edits.kinds");
  const offsets = fromColumn(message.offsets, Int32Array, "Edits.offsets");
  const ids = fromColumn(message.ids, Int32Array, "Edits.ids");
  const values = fromColumn(message.values, Float32Array, "Edits.values");
  checkColumns(rows, kinds, offsets, ids, values);

  const edits = Array.from(rows, (row, e) => ({
    row,
    kind: kinds[e],
    ids: ids.subarray(offsets[e], offsets[e + 1]),
    values: kinds[e] === EditKind.BIAS ? values.subarray(offsets[e], offsets[e + 1]) : new Float32Array(0),
  }));
  const finished = new Set();
  edits.forEach((edit, e) => {
    const first = e === 0 || edits[e - 1].row !== edit.row;
    if (first && e > 0) finished.add(edits[e - 1].row);
    refuse(finished.has(edit.row), `Edits.rows[${e}]: the edits of row ${edit.row} are not adjacent`);
    refuse(edit.row < 0 || edit.row >= rowCount, `Edits.rows[${e}] is ${edit.row}, of ${rowCount} rows`);
    checkEdit(edit, first, vocabSize, `edit ${e}`);
  });
  return edits;
}

/**
 * Applies edits in place. Values that no edit touches stay bit-identical.
 * @param {Edit[]} edits from readEdits, checked against these logits
 * @param {Float32Array} logits [rows, vocabSize], row-major
 * @param {number} vocabSize
 */
export function applyEdits(edits, logits, vocabSize) {
  const biases = new Map(); // place in logits -> sum; several biases of one id are summed before they are added
  for (const { row, kind, ids, values } of edits) {
    const begin = row * vocabSize;
    const scores = logits.subarray(begin, begin + vocabSize);
    switch (kind) {
      case EditKind.DENY:
        for (const id of ids) scores[id] = -Infinity;
        break;
      case EditKind.ALLOW: {
        const allowed = new Set(ids);
        keep(scores, (id) => allowed.has(id));
        break;
      }
      case EditKind.FORCE:
        scores.fill(-Infinity);
        scores[ids[0]] = 0;
        break;
      case EditKind.BIAS:
        ids.forEach((id, i) => biases.set(begin + id, (biases.get(begin + id) ?? 0) + values[i]));
        break;
      case EditKind.BITMASK:
        keep(scores, (id) => ((ids[id >> 5] >> (id & 31)) & 1) === 1);
        break;
    }
  }
  for (const [place, sum] of biases) {
    logits[place] += Math.fround(Math.min(Math.max(sum, -MAX_FLOAT32), MAX_FLOAT32));
  }
}

function keep(scores, isAllowed) {
  for (let id = 0; id < scores.length; id++) {
    if (!isAllowed(id)) scores[id] = -Infinity;
  }
}

function checkColumns(rows, kinds, offsets, ids, values) {
  if (offsets.length === 0 && rows.length + kinds.length + ids.length + values.length === 0) return;
  const fit =
    kinds.length === rows.length &&
    offsets.length === rows.length + 1 &&
    offsets[0] === 0 &&
    offsets.every((offset, e) => e === 0 || offset >= offsets[e - 1]) &&
    offsets[rows.length] === ids.length &&
    (values.length === 0 || values.length === ids.length);
  refuse(!fit, "Edits: the columns rows, kinds, offsets, ids and values do not fit together");
  refuse(!values.every(Number.isFinite), "Edits.values: a value is not finite");
}

function checkEdit({ kind, ids, values }, first, vocabSize, where) {
  refuse(!KINDS.has(kind), `${where}: unknown kind ${kind}`);
  if (kind === EditKind.BITMASK) {
    const words = Math.ceil(vocabSize / 32);
    refuse(ids.length !== words, `${where}: a BITMASK of ${ids.length} words; ${words} are wanted`);
    return;
  }
  const outside = ids.find((id) => id < 0 || id >= vocabSize);
  refuse(outside !== undefined, `${where}: token id ${outside} is not in [0, ${vocabSize})`);
  const isLawful = kind !== EditKind.FORCE || (first && ids.length === 1);
  refuse(!isLawful, `${where}: a FORCE has exactly one id and is the first edit of its row`);
  refuse(kind === EditKind.BIAS && values.length !== ids.length, `${where}: a BIAS without values`);
}

function refuse(wrong, message) {
  if (wrong) throw new RangeError(message);
}
