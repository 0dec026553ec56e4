// The editor of a chain: a card for each processor, with a form for its parameters.

import { make } from "./dom.js";
import { inputOf } from "./fields.js";

export class Chain {
  // entries: [{processor, params}]; forms: by name; changed: called after each change.
  constructor(lane, entries, changed) {
    this.lane = lane;
    this.entries = entries.map((entry) => ({ processor: entry.processor, params: structuredClone(entry.params) }));
    this.changed = changed;
    this.errors = {};
    this.forms = new Map();
    this.files = [];
    this.adder = make("span", { class: "add" });
    this.element = make("ol", { class: "chain", "aria-label": `Chain ${lane.toUpperCase()}` });
  }

  // Whether each field has a value that can be sent.
  get valid() {
    return !this.element.querySelector('[aria-invalid="true"]');
  }

  setForms(forms) {
    this.forms = new Map(forms.map((form) => [form.name, form]));
    this.draw();
  }

  setFiles(files) {
    this.files = files;
    for (const origin of this.element.querySelectorAll(".origin")) origin.textContent = this.origin(origin.dataset.file);
  }

  setErrors(errors) {
    this.errors = errors;
    [...this.element.querySelectorAll(".card")].forEach((card, place) => {
      const error = errors[place];
      card.classList.toggle("failed", Boolean(error));
      card.querySelector(".card-error").textContent = error ? error.split("\n\n")[0] : "";
      card.querySelector(".card-error").hidden = !error;
    });
  }

  draw() {
    this.element.replaceChildren(...this.entries.map((entry, place) => this.card(entry, place)));
    this.adder.replaceChildren(this.select());
    this.setErrors(this.errors);
  }

  card(entry, place) {
    const form = this.forms.get(entry.processor);
    const [file, name] = entry.processor.includes(":") ? entry.processor.split(":") : ["", entry.processor];
    const title = `${place + 1}: ${name}`;
    const button = (label, symbol, disabled, action) =>
      make("button", { type: "button", "aria-label": `${label} ${title}`, title: label, disabled, onclick: action }, symbol);
    const head = make(
      "div",
      { class: "card-head", title: form?.summary ?? "" },
      make("span", { class: `lp-swatch lp-c${(place % 8) + 1}`, "aria-hidden": "true" }, String(place + 1)),
      make("b", {}, name),
      file ? make("span", { class: "origin", "data-file": file }, this.origin(file)) : null,
      make(
        "span",
        { class: "card-buttons" },
        button("move earlier", "←", place === 0, () => this.move(place, place - 1)),
        button("move later", "→", place === this.entries.length - 1, () => this.move(place, place + 1)),
        button("remove", "✕", false, () => this.remove(place)),
      ),
    );
    const inputs = this.inputs(entry, form, title);
    const fields = inputs.length ? make("div", { class: "fields" }, ...inputs) : null;
    const error = make("p", { class: "card-error", hidden: true });
    return make("li", { class: "card", "aria-label": title }, head, fields, error);
  }

  inputs(entry, form, title) {
    const set = (name) => (value) => {
      if (value === undefined) delete entry.params[name];
      else entry.params[name] = value;
      this.changed();
    };
    if (form?.fields) {
      return form.fields.map((field) => inputOf(field, entry.params[field.name], title, set(field.name), () => this.changed()));
    }
    const json = { name: "parameters", kind: "object", required: true };
    const replace = (value) => {
      entry.params = value;
      this.changed();
    };
    return [inputOf(json, entry.params, title, replace, () => this.changed())];
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

  remove(place) {
    this.entries.splice(place, 1);
    this.update(() => this.element.querySelectorAll('button[title="remove"]')[Math.min(place, this.entries.length - 1)]);
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
