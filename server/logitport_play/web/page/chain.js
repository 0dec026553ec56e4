// The editor of a chain: a card for each processor, with a form for its parameters.

import { make } from "./dom.js";
import { inputOf } from "./fields.js";

export class Chain {
  // entries: [{processor, params, off}]; forms: by name; changed: called after each change.
  constructor(lane, entries, changed) {
    this.lane = lane;
    this.entries = structuredClone(entries);
    this.changed = changed;
    this.errors = {};
    this.forms = new Map();
    this.files = [];
    this.adder = make("span", { class: "add" });
    this.element = make("ol", { class: "chain", "aria-label": `Chain ${lane.toUpperCase()}` });
  }

  // Whether each field has a value that can be sent.
  get valid() {
    return !this.element.querySelector('.card:not(.off) [aria-invalid="true"]');
  }

  // The processors that are not switched off.
  get running() {
    return this.entries.filter((entry) => !entry.off).map(({ processor, params }) => ({ processor, params }));
  }

  setForms(forms) {
    this.forms = new Map(forms.map((form) => [form.name, form]));
    this.draw();
  }

  setFiles(files) {
    this.files = files;
    for (const origin of this.element.querySelectorAll(".origin")) origin.textContent = this.origin(origin.dataset.file);
    this.mark();
  }

  // errors: by the places of the processors that run.
  setErrors(errors) {
    this.errors = errors;
    this.mark();
  }

  // Marks each card that has an error.
  mark() {
    [...this.element.querySelectorAll(".card")].forEach((card, index) => {
      const error = this.entries[index].off ? "" : this.errorOf(card, index);
      card.classList.toggle("failed", Boolean(error));
      card.querySelector(".card-error").textContent = error;
    });
  }

  // The error of a card: of a field, of its file, or of the run.
  errorOf(card, index) {
    const { processor } = this.entries[index];
    const field = card.querySelector('[aria-invalid="true"]');
    if (field) return `${field.name}: ${field.title}`;
    const file = this.files.find((one) => one.name === processor.split(":")[0]);
    if (file?.error) return `${file.name} has an error; its last good version runs`;
    if (!this.forms.has(processor)) return `${processor} no longer exists; remove this card`;
    return (this.errors[this.place(index)] ?? "").split("\n\n")[0];
  }

  // The place in the chain that runs; null for a processor that is switched off.
  place(index) {
    return this.entries[index].off ? null : this.entries.slice(0, index).filter((entry) => !entry.off).length;
  }

  draw() {
    this.element.replaceChildren(...this.entries.map((entry, index) => this.card(entry, index)));
    this.adder.replaceChildren(this.select());
    this.mark();
  }

  card(entry, index) {
    const form = this.forms.get(entry.processor);
    const [file, name] = entry.processor.includes(":") ? entry.processor.split(":") : ["", entry.processor];
    const place = this.place(index);
    const title = place === null ? `${name}, off` : `${place + 1}: ${name}`;
    const button = (label, symbol, disabled, action) =>
      make("button", { type: "button", "aria-label": `${label} ${title}`, title: label, disabled, onclick: action }, symbol);
    const running = make("input", { type: "checkbox", class: "switch", "aria-label": `run card ${index + 1}, ${name}`, title: "run this processor" });
    running.checked = !entry.off;
    running.addEventListener("change", () => {
      entry.off = !running.checked;
      this.update(() => this.element.querySelectorAll(".switch")[index]);
    });
    const head = make(
      "div",
      { class: "card-head", title: form?.summary ?? "" },
      running,
      place === null ? null : make("span", { class: `lp-swatch lp-c${(place % 8) + 1}`, "aria-hidden": "true" }, String(place + 1)),
      make("b", {}, name),
      file ? make("span", { class: "origin", "data-file": file }, this.origin(file)) : null,
      make(
        "span",
        { class: "card-buttons" },
        button("move earlier", "←", index === 0, () => this.move(index, index - 1)),
        button("move later", "→", index === this.entries.length - 1, () => this.move(index, index + 1)),
        button("remove", "✕", false, () => this.remove(index)),
      ),
    );
    const inputs = this.inputs(entry, form, title);
    const fields = inputs.length ? make("div", { class: "fields" }, ...inputs) : null;
    return make("li", { class: `card${entry.off ? " off" : ""}`, "aria-label": title }, head, fields, make("p", { class: "card-error" }));
  }

  inputs(entry, form, title) {
    const edited = () => {
      this.mark();
      this.changed();
    };
    const set = (name) => (value) => {
      if (value === undefined) delete entry.params[name];
      else entry.params[name] = value;
      edited();
    };
    if (form?.fields) {
      return form.fields.map((field) => inputOf(field, entry.params[field.name], title, set(field.name), edited));
    }
    const json = { name: "parameters", kind: "object", required: true };
    const replace = (value) => {
      entry.params = value;
      edited();
    };
    return [inputOf(json, entry.params, title, replace, edited)];
  }

  select() {
    const groups = new Map();
    for (const form of this.forms.values()) groups.set(form.group, [...(groups.get(form.group) ?? []), form]);
    const options = [...groups].map(([label, forms]) =>
      make("optgroup", { label }, ...forms.map((form) => make("option", { value: form.name, title: form.summary }, form.name.split(":").pop()))),
    );
    const select = make("select", { "aria-label": "Add a processor" }, make("option", { value: "" }, "+ add a processor"), ...options);
    select.addEventListener("change", () => {
      const form = this.forms.get(select.value);
      if (!form) return;
      this.entries.push({ processor: form.name, params: structuredClone(form.params) });
      this.update(() => this.adder.firstChild);
    });
    return select;
  }

  move(from, to) {
    const [entry] = this.entries.splice(from, 1);
    this.entries.splice(to, 0, entry);
    const label = to < from ? "move earlier" : "move later";
    this.update(() => {
      const card = this.element.querySelectorAll(".card")[to];
      return card.querySelector(`button[title="${label}"]:not(:disabled)`) ?? card.querySelector("button:not(:disabled)");
    });
  }

  remove(index) {
    this.entries.splice(index, 1);
    this.update(() => this.element.querySelectorAll('button[title="remove"]')[Math.min(index, this.entries.length - 1)]);
  }

  update(focused) {
    this.errors = {};
    this.draw();
    (focused() ?? this.adder.firstChild).focus();
    this.changed();
  }

  origin(name) {
    const file = this.files.find((one) => one.name === name);
    if (!file) return name;
    return `${name} · ${file.error ? "error, last good version" : `saved ${age(file.seconds_since_saved)} ago`}`;
  }
}

function age(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}
