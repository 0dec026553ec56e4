// One field of a form. A field that cannot be read is marked, and is not sent.

import { make } from "./dom.js";

const READERS = {
  number: (text) => finite(Number(text)),
  integer: (text) => {
    const number = finite(Number(text));
    if (!Number.isSafeInteger(number)) throw new Error("write an integer");
    return number;
  },
  text: (text) => text,
  token_ids: (text) => {
    const words = text.replace(/[[\],]/g, " ").split(/\s+/).filter(Boolean);
    if (!words.every((word) => /^\d{1,9}$/.test(word))) throw new Error("write ids, such as 3, 17");
    return words.map(Number);
  },
  json: (text) => JSON.parse(text),
  object: (text) => {
    const value = JSON.parse(text);
    if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("write a JSON object");
    return value;
  },
};

function finite(number) {
  if (!Number.isFinite(number)) throw new Error("write a number");
  return number;
}

// set gets the value, undefined for an empty field; refused is called if the field cannot be read.
export function inputOf(field, value, title, set, refused) {
  const label = `${field.name} of ${title}`;
  const hint = [field.help, limits(field)].filter(Boolean).join("; ");
  const star = field.required ? make("span", { class: "star", title: "required", "aria-hidden": "true" }, "*") : null;
  if (field.kind === "boolean") {
    const box = make("input", { type: "checkbox", "aria-label": label, title: hint });
    box.checked = value ?? field.default ?? false;
    box.addEventListener("change", () => set(box.checked));
    return make("label", {}, field.name, star, box);
  }
  const input =
    field.kind === "object" || field.kind === "json"
      ? make("textarea", { rows: 2, spellcheck: "false", "aria-label": label, title: hint || "JSON" })
      : make("input", {
          type: ["number", "integer"].includes(field.kind) ? "number" : "text",
          min: field.minimum,
          max: field.maximum,
          step: field.kind === "integer" ? 1 : "any",
          placeholder: field.default === null || field.default === undefined ? "" : String(field.default),
          required: field.required,
          "aria-label": label,
          title: hint,
          spellcheck: "false",
        });
  input.name = field.name;
  if (value !== undefined) input.value = shown(field, value);
  input.addEventListener("input", () => {
    let read;
    try {
      if (input.validity.badInput) throw new Error("write a number");
      const empty = input.value.trim() === "" && field.kind !== "text";
      if (empty && field.required) throw new Error("a value is required");
      read = empty ? undefined : READERS[field.kind](input.value);
    } catch (error) {
      input.setAttribute("aria-invalid", "true");
      input.title = error.message;
      refused();
      return;
    }
    input.removeAttribute("aria-invalid");
    input.title = hint;
    set(read);
  });
  return make("label", {}, field.name, star, input);
}

function shown(field, value) {
  if (field.kind === "token_ids" && Array.isArray(value)) return value.join(", ");
  if (field.kind === "json" || field.kind === "object") return JSON.stringify(value);
  return String(value);
}

function limits(field) {
  const { minimum, maximum } = field;
  if (minimum !== null && minimum !== undefined && maximum !== null && maximum !== undefined) return `${minimum} to ${maximum}`;
  if (minimum !== null && minimum !== undefined) return `at least ${minimum}`;
  return "";
}
