"""Functions for the page that list its defects for users of screen readers, and for users who see little contrast."""

# Visible elements without a name.
NAMELESS = """() => {
  const kinds = 'button, input, select, textarea, [role=radiogroup], [role=img], svg[role]';
  return [...document.querySelectorAll(kinds)]
    .filter((one) => one.getClientRects().length)
    .filter((one) => !(one.ariaLabel || one.labels?.length || one.textContent.trim() || one.title))
    .map((one) => one.outerHTML.slice(0, 100));
}"""
# Texts with a contrast below 4.5, by WCAG 2.2 AA: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const over = (top, below) => below.map((v, i) => top[i] * top[3] / 255 + v * (1 - top[3] / 255));
  const ancestors = (one) => (one ? [...ancestors(one.parentElement), getComputedStyle(one)] : []);
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const element = walker.currentNode.parentElement;
    if (!text || !element.getClientRects().length) continue;
    if (element.closest('.lp-hidden, :disabled, option, .lp-space, noscript')) continue;
    const styles = ancestors(element);
    const below = styles.reduce((all, style) => over(rgba(style.backgroundColor), all), [255, 255, 255]);
    const ink = rgba(getComputedStyle(element).color);
    ink[3] = styles.reduce((all, style) => all * style.opacity, ink[3]);
    const [high, low] = [light(over(ink, below)), light(below)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${element.className} ${text.slice(0, 30)}`);
  }
  return found;
}"""
