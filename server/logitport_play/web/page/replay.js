// The page of a recording: one request, and where new versions of its processors differ.

import { get, post } from "./api.js";
import { make } from "./dom.js";
import { Problems } from "./problems.js";
import { Viewer } from "./viewer.js";

const byId = (id) => document.getElementById(id);

class ReplayPage {
  constructor(state) {
    this.state = state;
    this.versions = null; // by place; null lets the server choose
    this.differ = [];
    this.calls = Promise.resolve();
    this.problems = new Problems(byId("problems"));
    this.viewer = new Viewer("a", "No row can be shown.");
    this.lane = document.querySelector(".lane");
    this.lane.append(this.viewer.element);
    byId("recording").textContent = state.recording;
    byId("request").replaceChildren(
      ...state.requests.map((one, index) => make("option", { value: index }, `${one.name} · ${one.steps} steps · ${one.chain || "no chain"}`)),
    );
    this.bind();
    this.problems.setFiles(state.files);
    this.run(true);
  }

  bind() {
    byId("settings").addEventListener("submit", (event) => event.preventDefault());
    byId("request").addEventListener("change", () => {
      this.versions = null;
      this.viewer.chosen = -1;
      this.run(true);
    });
    byId("previous").addEventListener("click", () => this.go(this.differ.filter((row) => row < this.viewer.current).pop()));
    byId("next").addEventListener("click", () => this.go(this.differ.find((row) => row > this.viewer.current)));
    document.addEventListener("keydown", (event) => {
      const button = { ",": "previous", ".": "next" }[event.key];
      if (!button || !(event.ctrlKey || event.metaKey)) return;
      byId(button).click();
      event.preventDefault();
    });
    const loaded = async () => {
      this.state = await get("state");
      this.run();
    };
    this.problems.watch(this.state.version, loaded, ({ files }) => this.problems.setFiles(files));
  }

  go(row) {
    if (row !== undefined) this.viewer.choose(row);
  }

  // fresh: whether to show the first difference. The last call wins.
  run(fresh = false) {
    const ticket = (this.ticket = Symbol("run"));
    this.calls = this.calls
      .then(() => this.runNow(ticket, fresh))
      .catch((error) => this.problems.set("replay", error.message))
      .finally(() => this.lane.removeAttribute("aria-busy"));
  }

  async runNow(ticket, fresh) {
    let since = 0;
    let result;
    this.lane.setAttribute("aria-busy", "true");
    this.viewer.follows = fresh;
    do {
      if (ticket !== this.ticket) return;
      result = await post("replay", { request: byId("request").selectedIndex, versions: this.versions, since });
      if (ticket !== this.ticket) return; // its versions are those of another request
      since = result.steps;
      this.draw(result);
    } while (!result.ended);
    this.problems.set("replay", result.error ? result.error.split("\n\n")[0] : null);
    if (fresh) this.viewer.choose(result.steps ? (result.differ[0] ?? 0) : -1);
  }

  draw(result) {
    this.differ = result.differ;
    this.versions = result.chain.map((one) => one.version);
    byId("facts").textContent = result.summary;
    this.drawChain(result.chain);
    this.viewer.draw(result);
    byId("previous").disabled = byId("next").disabled = !this.differ.length;
  }

  drawChain(chain) {
    const written = JSON.stringify([chain, this.state.versions]);
    if (written === this.written) return; // a select that is open stays open
    this.written = written;
    byId("chain").replaceChildren(...chain.map((one, place) => this.card(one, place)));
  }

  card(one, place) {
    const title = `${place + 1}: ${one.name}`;
    const select = make(
      "select",
      { "aria-label": `version of ${title}` },
      make("option", { value: "" }, one.as_recorded),
      ...this.state.versions.map((name) => make("option", { value: name }, name)),
    );
    select.value = one.version;
    select.addEventListener("change", () => {
      this.versions[place] = select.value;
      this.run();
    });
    const head = make("div", { class: "card-head" }, make("b", {}, `${title}`), make("span", { class: "origin" }, one.kind));
    const fields = make("div", { class: "fields" }, make("label", {}, "version", select));
    const params = one.params === "{}" ? null : make("code", { class: "params", title: "the recorded parameters" }, one.params);
    return make("li", { class: "card", "aria-label": title }, head, fields, params);
  }
}

new ReplayPage(await get("state"));
