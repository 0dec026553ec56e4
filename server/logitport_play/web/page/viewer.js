// The tokens of a run, its charts, and the step that is shown.

import { fill, make } from "./dom.js";

export class Viewer {
  // name: of its tiles; hint: what stands in place of charts without steps.
  constructor(name, hint) {
    this.name = name;
    this.hint = hint;
    this.current = -1; // the step that is shown
    this.chosen = -1; // the step to show: `current` is before it until a run has reached it again
    this.follows = true; // whether each new step is shown
    this.panes = [];
    this.tokensElement = make("div");
    this.chartsElement = make("div");
    this.paneElement = make("section", { class: "lp-pane", "aria-label": "The step", hidden: true });
    this.element = make(
      "div",
      { class: "lp-columns" },
      make("div", { class: "lp-run" }, this.tokensElement, this.chartsElement),
      make("div", { class: "lp-panes" }, this.paneElement),
    );
    this.element.addEventListener("change", (event) => {
      if (event.target.name === `${name}-step`) this.choose(Number(event.target.value));
    });
    this.element.addEventListener("click", (event) => {
      const column = event.target.closest("[data-step]");
      if (column) this.choose(Number(column.dataset.step));
    });
  }

  // result: the tiles and charts of all steps, and the panes of those from `since` on.
  draw(result) {
    const focused = document.activeElement?.name === `${this.name}-step`;
    this.panes.splice(result.since, Infinity, ...result.panes);
    fill(this.tokensElement, result.tiles);
    fill(this.chartsElement, result.charts);
    const last = result.steps - 1;
    if (this.follows) this.chosen = last;
    this.show(Math.min(this.chosen, last), focused);
  }

  choose(step) {
    this.follows = false;
    this.chosen = step;
    this.show(step);
  }

  show(step, focus = false) {
    this.current = step;
    this.paneElement.hidden = step < 0;
    if (step < 0) {
      this.chartsElement.replaceChildren(make("p", { class: "hint" }, this.hint));
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
}
