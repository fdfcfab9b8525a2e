/* Elements from data. Text always goes in as text, so nothing that an agent wrote can become
   markup; the one exception is `safeHtml`, for Markdown that the site has rendered and cleaned. */

const sprite = new URL("./icons.svg", import.meta.url).pathname;
const svgNames = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name in element && !name.startsWith("aria-")) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export function icon(name) {
  const svg = document.createElementNS(svgNames, "svg");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(svgNames, "use");
  use.setAttribute("href", `${sprite}#${name}`);
  svg.append(use);
  return svg;
}

/* Only for what /rendered/ delivered, and for code that was escaped while it was coloured. */
export function safeHtml(element, html) {
  element.innerHTML = html;
}

/* Say something to a screen reader, once, without moving the focus. */
export function announce(text) {
  byId("announcer").textContent = text;
}
