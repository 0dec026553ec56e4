// What is wrong, as alerts; and the files, which are loaded again when they are saved.

import { get } from "./api.js";
import { make } from "./dom.js";

const POLL_MILLISECONDS = 700;

export class Problems {
  constructor(element) {
    this.element = element;
    this.problems = new Map();
  }

  // title: null if it is solved.
  set(name, title, trace = "") {
    if (title === null) this.problems.delete(name);
    else this.problems.set(name, { title, trace });
    this.draw();
  }

  setFiles(files) {
    for (const file of files) {
      this.set(file.name, file.error ? `${file.name} has an error; its last good version goes on` : null, file.error);
    }
  }

  // version: of the files so far; loaded: called after one was saved; seen: called with the files from time to time.
  watch(version, loaded, seen) {
    setInterval(async () => {
      if (document.visibilityState !== "visible") return;
      try {
        const files = await get("files");
        this.set("server", null);
        if (files.version !== version) {
          await loaded();
          version = files.version;
        }
        seen(files);
      } catch {
        this.set("server", "logitport play does not answer; start it again");
      }
    }, POLL_MILLISECONDS);
  }

  draw() {
    const written = JSON.stringify([...this.problems]);
    if (written === this.written) return; // an alert that is replaced is read again
    this.written = written;
    this.element.replaceChildren(
      ...[...this.problems.values()].map(({ title, trace }) =>
        make("div", { class: "problem" }, make("p", {}, title), trace ? make("pre", { tabindex: 0 }, trace) : null),
      ),
    );
  }
}
