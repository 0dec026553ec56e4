// Columns: `bytes` fields of the contract that hold an array of little-endian numbers.

import { endianness } from "node:os";

if (endianness() !== "LE") {
  throw new Error("columns are little-endian and typed arrays here are not: write them with a DataView");
}

/**
 * The column of an array.
 * @param {Int32Array | Uint32Array | Float32Array} array
 * @returns {Buffer} the array's own memory
 */
export function toColumn(array) {
  return Buffer.from(array.buffer, array.byteOffset, array.byteLength);
}

/**
 * The array of a column. Copies, because a column that was received may begin at any byte.
 * @template {Int32Array | Uint32Array | Float32Array | Uint8Array} T
 * @param {Buffer} column
 * @param {new (buffer: ArrayBuffer) => T} ArrayType
 * @param {string} name of the column, for the error
 * @returns {T}
 * @throws {RangeError} not a whole number of elements
 */
export function fromColumn(column, ArrayType, name) {
  const size = ArrayType.BYTES_PER_ELEMENT;
  if (column.length % size !== 0) {
    throw new RangeError(`${name}: ${column.length} bytes are not a whole number of elements of ${size}`);
  }
  return new ArrayType(new Uint8Array(column).buffer);
}

/**
 * Token ids as they travel.
 * @param {Iterable<number>} tokenIds each an integer in [0, vocabSize)
 * @param {number} vocabSize width of the logits
 * @returns {Int32Array}
 * @throws {RangeError} an id that is not; a typed array would wrap it around without a word
 */
export function toTokenIds(tokenIds, vocabSize) {
  return Int32Array.from(tokenIds, (id) => {
    if (!Number.isInteger(id) || id < 0 || id >= vocabSize) {
      throw new RangeError(`token id ${id} is not in [0, ${vocabSize})`);
    }
    return id;
  });
}
