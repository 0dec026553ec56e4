// Elements without a framework.

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

// Replaces the content by HTML of the server, which has escaped all texts.
export function fill(element, html) {
  element.replaceChildren(...new DOMParser().parseFromString(html, "text/html").body.childNodes);
}
