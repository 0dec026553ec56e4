// One chain and its run: the tokens, the charts, and the step that is shown.

import { post } from "./api.js";
import { Chain } from "./chain.js";
import { fill, make } from "./dom.js";

const STEP_NAMES = { eos: "an id that ends a sequence", nothing_allowed: "the chain allows no id" };

export class Lane {
  // page: has settings() and report(); its methods are called after changes.
  constructor(name, entries, page) {
    this.name = name;
    this.page = page;
    this.steps = 0; // that the user has asked for
    this.forced = {};
    this.current = -1; // the step that is shown
    this.follows = true; // whether each new step is shown
    this.panes = [];
    this.tokens = [];
    this.calls = Promise.resolve();
    this.chain = new Chain(name, entries, () => page.changed(this));
    this.facts = make("span", { class: "lp-facts" });
    this.tokensElement = make("div");
    this.chartsElement = make("div");
    this.paneElement = make("section", { class: "lp-pane", "aria-label": "The step", hidden: true });
    const exporting = make("button", { type: "button", class: "export", onclick: () => page.exportTest(this) }, "Export as test");
    this.title = make("h2", {}, "Chain");
    this.element = make(
      "section",
      { class: "lane", "aria-label": `Chain ${name.toUpperCase()}`, "data-lane": name },
      make("div", { class: "lane-head" }, this.title, this.facts, this.chain.adder, exporting),
      this.chain.element,
      make(
        "div",
        { class: "lp-columns" },
        make("div", { class: "lp-run" }, this.tokensElement, this.chartsElement),
        make("div", { class: "lp-panes" }, this.paneElement),
      ),
    );
    this.element.addEventListener("change", (event) => {
      if (event.target.name === `${name}-step`) this.choose(Number(event.target.value));
    });
    this.element.addEventListener("click", (event) => {
      const force = event.target.closest(".lp-force");
      if (force) this.force(Number(force.dataset.token));
      const column = event.target.closest("[data-step]");
      if (column) this.choose(Number(column.dataset.step));
    });
    this.paneElement.addEventListener("keydown", (event) => this.moveFocus(event));
  }

  get spec() {
    const forced = Object.fromEntries(Object.entries(this.forced).filter(([step]) => Number(step) < this.steps));
    return { lane: this.name, chain: this.chain.entries, steps: this.steps, forced, ...this.page.settings() };
  }

  // Runs to `this.steps`. The last call wins; calls of one lane follow one another.
  run({ follow = false, again = false } = {}) {
    this.follows = follow || this.current < 0;
    this.ticket = Symbol("run");
    const ticket = this.ticket;
    this.calls = this.calls
      .then(() => this.runNow(ticket, again))
      .catch((error) => this.page.report(this, error))
      .finally(() => this.element.removeAttribute("aria-busy"));
    return this.calls;
  }

  async runNow(ticket, again) {
    let since = again ? 0 : this.panes.length;
    let result;
    this.element.setAttribute("aria-busy", "true");
    do {
      if (ticket !== this.ticket) return;
      if (!this.chain.valid) return;
      result = await post("run", { ...this.spec, since });
      this.panes.splice(result.since, Infinity, ...result.panes);
      since = result.steps;
      this.draw(result);
    } while (result.steps < this.steps && !result.ended);
    this.steps = result.steps;
    this.page.report(this, null);
  }

  draw(result) {
    const focused = document.activeElement?.name === `${this.name}-step`;
    this.tokens = result.tokens;
    fill(this.tokensElement, result.tiles);
    fill(this.chartsElement, result.charts);
    this.chain.setErrors(result.errors);
    const percent = (value) => `${Math.round(100 * value)} %`;
    const { moved, before, after } = result.summary;
    const end = result.ended ? ` · ended: ${STEP_NAMES[result.ended]}` : "";
    this.facts.textContent = result.steps
      ? `${result.steps} steps · moved ${percent(moved)} in the mean · entropy ${before.toFixed(2)} → ${after.toFixed(2)} nats${end}`
      : "";
    this.element.dataset.milliseconds = result.new_steps ? (result.milliseconds / result.new_steps).toFixed(1) : "";
    this.show(this.follows ? result.steps - 1 : Math.min(this.current, result.steps - 1), focused);
    this.page.drawn();
  }

  choose(step) {
    this.follows = false;
    this.show(step);
  }

  show(step, focus = false) {
    this.current = step;
    this.paneElement.hidden = step < 0;
    if (step < 0) {
      const hint = make("p", { class: "hint" }, "Press Step or Run. Each token becomes a tile; its color is the mass that the chain moved.");
      this.chartsElement.replaceChildren(hint);
      return;
    }
    fill(this.paneElement, this.panes[step]);
    const radio = this.tokensElement.querySelector(`#${this.name}-s${step}`);
    radio.checked = true;
    if (focus) radio.focus();
    for (const column of this.chartsElement.querySelectorAll(".lp-column")) {
      column.classList.toggle("lp-current", Number(column.dataset.step) === step);
    }
    document.getElementById("status").textContent = radio.getAttribute("aria-label");
  }

  // Chooses this id at the shown step, and runs again from there.
  async force(token) {
    const step = this.current;
    this.forced = Object.fromEntries(Object.entries(this.forced).filter(([other]) => Number(other) < step));
    this.forced[step] = token;
    this.steps = Math.max(this.steps, step + 1);
    await this.run({ again: true });
    this.paneElement.querySelector(`.lp-force[data-token="${token}"]`)?.focus();
  }

  moveFocus(event) {
    const buttons = [...this.paneElement.querySelectorAll(".lp-force")];
    const place = buttons.indexOf(event.target);
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (place < 0 || !by) return;
    event.preventDefault();
    buttons[Math.max(0, Math.min(buttons.length - 1, place + by))].focus();
  }

  reset() {
    this.steps = 0;
    this.forced = {};
    this.panes = [];
    return this.run({ again: true });
  }

  // Marks the tokens that differ from those of another lane; null for none.
  markDifferences(other) {
    this.tokensElement.querySelectorAll(".lp-tile").forEach((tile, step) => {
      tile.classList.toggle("differs", other !== null && step < other.tokens.length && other.tokens[step] !== this.tokens[step]);
    });
  }
}
