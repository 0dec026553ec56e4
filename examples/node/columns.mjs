// Columns: `bytes` fields of the contract that hold an array of little-endian numbers.

import { endianness } from "node:os";

if (endianness() !== "LE") {
  throw new Error("columns are little-endian, but this machine's typed arrays are not: use a DataView");
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
 * The array of a column. Copies, because a received column may have any alignment.
 * @template {Int32Array | Uint32Array | Float32Array | Uint8Array} T
 * @param {Buffer} column
 * @param {new (buffer: ArrayBuffer) => T} ArrayType
 * @param {string} name of the column, for the error
 * @returns {T}
 * @throws {RangeError} the length is not a multiple of the element size
 */
export function fromColumn(column, ArrayType, name) {
  const size = ArrayType.BYTES_PER_ELEMENT;
  if (column.length % size !== 0) {
    throw new RangeError(`${name}: ${column.length} bytes are not a whole number of elements of ${size}`);
  }
  return new ArrayType(new Uint8Array(column).buffer);
}

/**
 * Token ids as int32, the type in messages.
 * @param {Iterable<number>} tokenIds each an integer in [0, vocabSize)
 * @param {number} vocabSize width of the logits
 * @returns {Int32Array}
 * @throws {RangeError} an id is outside that range; a typed array would wrap it around silently
 */
export function toTokenIds(tokenIds, vocabSize) {
  return Int32Array.from(tokenIds, (id) => {
    if (!Number.isInteger(id) || id < 0 || id >= vocabSize) {
      throw new RangeError(`token id ${id} is not in [0, ${vocabSize})`);
    }
    return id;
  });
}
