// One chain and its run: the tokens, the charts, and the step that is shown.

import { post } from "./api.js";
import { Chain } from "./chain.js";
import { make } from "./dom.js";
import { Viewer } from "./viewer.js";

export class Lane {
  // page: has settings() and report(); its methods are called after changes.
  constructor(name, entries, page) {
    this.name = name;
    this.page = page;
    this.steps = 0; // that the user has asked for
    this.forced = {};
    this.tokens = [];
    this.calls = Promise.resolve();
    this.chain = new Chain(name, entries, () => page.changed(this));
    this.facts = make("span", { class: "lp-facts" });
    this.viewer = new Viewer(name, "Press Step or Run. Each token becomes a tile; its color is the mass that the chain moved.");
    const exporting = make("button", { type: "button", class: "export", onclick: () => page.exportTest(this) }, "Export as test");
    this.title = make("h2", {}, "Chain");
    this.element = make(
      "section",
      { class: "lane", "aria-label": `Chain ${name.toUpperCase()}`, "data-lane": name },
      make("div", { class: "lane-head" }, this.title, this.facts, this.chain.adder, exporting),
      this.chain.element,
      this.viewer.element,
    );
    this.viewer.element.addEventListener("click", (event) => {
      const force = event.target.closest(".lp-force");
      if (force) this.force(Number(force.dataset.token));
    });
    this.viewer.paneElement.addEventListener("keydown", (event) => this.moveFocus(event));
  }

  get spec() {
    const forced = Object.fromEntries(Object.entries(this.forced).filter(([step]) => Number(step) < this.steps));
    return { lane: this.name, chain: this.chain.running, steps: this.steps, forced, ...this.page.settings() };
  }

  // Runs to `this.steps`. The last call wins; calls of one lane follow one another.
  run({ follow = false, again = false } = {}) {
    this.viewer.follows = follow || this.viewer.chosen < 0;
    this.ticket = Symbol("run");
    const ticket = this.ticket;
    this.calls = this.calls
      .then(() => this.runNow(ticket, again))
      .catch((error) => this.page.report(this, error))
      .finally(() => this.element.removeAttribute("aria-busy"));
    return this.calls;
  }

  async runNow(ticket, again) {
    let since = again ? 0 : this.viewer.panes.length;
    let result;
    this.element.setAttribute("aria-busy", "true");
    do {
      if (ticket !== this.ticket) return;
      if (!this.chain.valid) return;
      result = await post("run", { ...this.spec, since });
      since = result.steps;
      this.draw(result);
    } while (result.steps < this.steps && !result.ended);
    if (ticket === this.ticket) this.steps = result.steps; // a reset during the call has set others
    this.page.report(this, null);
  }

  draw(result) {
    this.tokens = result.tokens;
    this.chain.setErrors(result.errors);
    const percent = (value) => `${Math.round(100 * value)} %`;
    const { moved, before, after } = result.summary;
    const end = result.ended ? ` · ended: ${result.ended_because}` : "";
    this.facts.textContent = result.steps
      ? `${result.steps} steps · moved ${percent(moved)} in the mean · entropy ${before.toFixed(2)} → ${after.toFixed(2)} nats${end}`
      : "";
    this.viewer.draw(result);
    this.page.drawn();
  }

  // Chooses this id at the shown step, and runs again from there.
  async force(token) {
    const step = this.viewer.current;
    this.forced = Object.fromEntries(Object.entries(this.forced).filter(([other]) => Number(other) < step));
    this.forced[step] = token;
    this.steps = Math.max(this.steps, step + 1);
    await this.run({ again: true });
    this.viewer.paneElement.querySelector(`.lp-force[data-token="${token}"]`)?.focus();
  }

  moveFocus(event) {
    const buttons = [...this.viewer.paneElement.querySelectorAll(".lp-force")];
    const place = buttons.indexOf(event.target);
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (place < 0 || !by) return;
    event.preventDefault();
    buttons[Math.max(0, Math.min(buttons.length - 1, place + by))].focus();
  }

  // Begins again with this chain, for as many steps.
  open(entries, steps) {
    this.chain.entries = structuredClone(entries);
    this.chain.errors = {};
    this.chain.draw();
    this.forced = {};
    this.steps = steps;
    return this.run({ follow: true, again: true });
  }

  reset() {
    this.steps = 0;
    this.forced = {};
    this.viewer.panes = [];
    return this.run({ again: true });
  }

  // Marks the tokens that differ from those of another lane; null for none.
  markDifferences(other) {
    this.viewer.tokensElement.querySelectorAll(".lp-tile").forEach((tile, step) => {
      tile.classList.toggle("lp-differs", other !== null && step < other.tokens.length && other.tokens[step] !== this.tokens[step]);
    });
  }
}
