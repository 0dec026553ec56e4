// The examples: one processor each, on the small model, without and with it.

import { get } from "./api.js";
import { fill, make } from "./dom.js";

// open: called with an example that the user wants to change; failed: called with an error.
export async function showExamples(element, open, failed) {
  try {
    const { examples } = await get("examples");
    element.hidden = !examples.length;
    element.querySelector(".example-cards").replaceChildren(...examples.map((example) => card(example, open)));
  } catch (error) {
    failed(error);
  }
}

function card(example, open) {
  const article = make("article", { class: "card example", "aria-label": example.title });
  fill(article, example.html);
  article.append(make("button", { type: "button", "aria-label": `Change ${example.title}`, onclick: () => open(example) }, "Change it below"));
  return article;
}
