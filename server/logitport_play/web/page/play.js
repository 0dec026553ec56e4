// The page: settings, lanes, and files that are saved.

import { get, post } from "./api.js";
import { make } from "./dom.js";
import { showExamples } from "./examples.js";
import { Lane } from "./lane.js";
import { Problems } from "./problems.js";

const DELAY_MILLISECONDS = 200; // after the last key in a field
const STORED = "play";

const byId = (id) => document.getElementById(id);

class Page {
  constructor(state) {
    this.state = state;
    this.problems = new Problems(byId("problems"));
    this.lanes = [];
    const stored = restored(state);
    byId("model").replaceChildren(...state.models.map((model) => make("option", {}, model.name)));
    byId("model").value = stored.model ?? state.model;
    byId("prompt").value = stored.prompt ?? state.prompt;
    byId("seed").value = stored.seed ?? state.seed;
    byId("temperature").value = stored.temperature ?? 1;
    this.addLane("a", stored.chains?.[0] ?? state.chain);
    this.lanes[0].steps = stored.steps ?? state.steps;
    if (stored.chains?.length > 1) this.compare(stored.chains[1]);
    this.bind();
    this.setFiles(state);
    this.rerun();
  }

  // Shows an example in the first lane, with the small model.
  open(example) {
    byId("model").value = this.state.example_model;
    byId("prompt").value = example.prompt;
    byId("seed").value = example.seed;
    byId("temperature").value = 1;
    this.lanes[0].open(example.chain, example.steps);
    this.lanes[1]?.run({ again: true });
    this.lanes[0].element.scrollIntoView({ block: "start" });
  }

  settings() {
    return {
      model: byId("model").value,
      prompt: byId("prompt").value,
      seed: Number(byId("seed").value),
      temperature: Number(byId("temperature").value),
    };
  }

  bind() {
    byId("step").addEventListener("click", () => this.forward(1));
    byId("run").addEventListener("click", () => this.forward(Math.max(1, byId("count").valueAsNumber || 1)));
    byId("reset").addEventListener("click", () => this.lanes.forEach((lane) => lane.reset()));
    byId("compare").addEventListener("change", () => this.compare());
    byId("settings").addEventListener("submit", (event) => event.preventDefault());
    byId("settings").addEventListener("input", (event) => {
      if (event.target.id === "model") {
        byId("prompt").value = this.state.models.find((model) => model.name === event.target.value).prompt;
      }
      this.lanes.forEach((lane) => (lane.forced = {}));
      this.changed();
    });
    document.addEventListener("keydown", (event) => {
      if (!(event.ctrlKey || event.metaKey)) return;
      if (event.key === "Enter") byId("run").click();
      else if (event.key === ".") byId("step").click();
      else return;
      event.preventDefault();
    });
    byId("close").addEventListener("click", () => byId("export").close());
    byId("copy").addEventListener("click", async () => {
      await navigator.clipboard.writeText(byId("code").textContent);
      byId("copy").textContent = "Copied";
    });
    this.problems.watch(this.state.version, async () => {
      this.state = await get("state");
      this.lanes.forEach((lane) => lane.chain.setForms(this.state.processors));
      this.rerun();
    }, (files) => this.setFiles(files));
  }

  addLane(name, entries) {
    const lane = new Lane(name, entries, this);
    lane.chain.setForms(this.state.processors);
    lane.chain.setFiles(this.state.files);
    this.lanes.push(lane);
    byId("lanes").append(lane.element);
  }

  // Adds or removes the second lane, which begins with a copy of the first chain.
  compare(entries = null) {
    const [first, second] = this.lanes;
    if (second) {
      second.element.remove();
      this.lanes.pop();
      this.problems.set("b", null);
    } else {
      this.addLane("b", entries ?? first.chain.entries);
      this.lanes[1].steps = first.steps;
      this.lanes[1].forced = { ...first.forced };
      this.lanes[1].viewer.chosen = first.viewer.chosen;
      this.lanes[1].run({ again: true });
    }
    const two = this.lanes.length > 1;
    byId("compare").checked = two;
    byId("lanes").classList.toggle("two", two);
    this.lanes.forEach((lane) => (lane.title.textContent = two ? `Chain ${lane.name.toUpperCase()}` : "Chain"));
    this.drawn();
  }

  forward(count) {
    for (const lane of this.lanes) {
      lane.steps = Math.min(this.state.max_steps, lane.steps + count);
      lane.run({ follow: true });
    }
  }

  // A setting, or the chain of one lane, has changed: it runs again, with as many steps.
  changed(lane = null) {
    clearTimeout(this.timer);
    this.stale = new Set([...(this.stale ?? []), ...(lane ? [lane] : this.lanes)]);
    this.timer = setTimeout(() => {
      const lanes = this.stale;
      this.stale = new Set();
      this.rerun([...lanes].filter((one) => this.lanes.includes(one)));
    }, DELAY_MILLISECONDS);
  }

  rerun(lanes = this.lanes) {
    if (!byId("seed").reportValidity()) return;
    for (const lane of lanes) lane.run({ again: true });
  }

  drawn() {
    const [first, second] = this.lanes;
    first.markDifferences(null);
    second?.markDifferences(first);
    const chains = this.lanes.map((lane) => lane.chain.entries);
    const steps = first.steps;
    sessionStorage.setItem(STORED, JSON.stringify({ ...this.settings(), chains, steps }));
  }

  report(lane, error) {
    const place = /\$\.chain\[(\d+)\]/.exec(error?.message);
    if (place) lane.chain.setErrors({ [place[1]]: error.message });
    this.problems.set(lane.name, error === null ? null : error.message);
  }

  setFiles({ files }) {
    this.problems.setFiles(files);
    this.lanes.forEach((lane) => lane.chain.setFiles(files));
  }

  async exportTest(lane) {
    try {
      const { code } = await post("export", lane.spec);
      byId("code").textContent = code;
      byId("copy").textContent = "Copy";
      byId("download").href = `data:text/x-python;charset=utf-8,${encodeURIComponent(code)}`;
      byId("export").showModal();
      this.report(lane, null);
    } catch (error) {
      this.report(lane, error);
    }
  }
}

// The settings before the page was loaded again, if they still fit.
function restored(state) {
  try {
    const stored = JSON.parse(sessionStorage.getItem(STORED)) ?? {};
    const names = new Set(state.processors.map((form) => form.name));
    const known = stored.chains?.flat().every((entry) => names.has(entry.processor));
    return known && state.models.some((model) => model.name === stored.model) ? stored : {};
  } catch {
    return {};
  }
}

const page = new Page(await get("state"));
showExamples(byId("examples"), (example) => page.open(example), (error) => page.problems.set("examples", error.message));
