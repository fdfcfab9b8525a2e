/* Words and times in the reader's language.

   The modules have no words of their own: they ask for them by name. The words come with the page
   (chat/strings.py), dates and ages from the browser's Intl in the language of the page. */

const strings = JSON.parse(document.getElementById("strings").textContent);
const language = document.documentElement.lang;

const relative = new Intl.RelativeTimeFormat(language, { numeric: "always", style: "narrow" });
const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const moment = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" });

const seconds = new Intl.NumberFormat(language, { style: "unit", unit: "second", unitDisplay: "short", maximumFractionDigits: 1 });
const numbers = new Intl.NumberFormat(language);

let ahead = 0; // milliseconds by which this computer's clock is ahead of the site's

export function t(name, values = {}) {
  const text = strings[name];
  if (text === undefined) throw new Error(`no string ${name}`);
  return text.replace(/\{(\w+)\}/g, (whole, key) => values[key] ?? whole);
}

export const has = (name) => Object.hasOwn(strings, name);

/* "researcher-2" → "Researcher 2"; an agent the site does not know keeps its own name. */
export function agentName(id) {
  const [, base, number] = /^(.*?)(?:-(\d+))?$/.exec(id);
  if (!has(`agent_${base}`)) return id;
  return t(`agent_${base}`) + (number ? ` ${number}` : "");
}

export function setSiteClock(iso) {
  ahead = Date.now() - Date.parse(iso);
}

export function age(iso) {
  const seconds = Math.max(0, (Date.now() - ahead - Date.parse(iso)) / 1000);
  if (seconds < 1) return t("just_now");
  if (seconds < 100) return relative.format(-Math.floor(seconds), "second");
  if (seconds < 6000) return relative.format(-Math.floor(seconds / 60), "minute");
  return relative.format(-Math.floor(seconds / 3600), "hour");
}

export const secondsSince = (iso) => (Date.now() - ahead - Date.parse(iso)) / 1000;
export const siteNow = () => new Date(Date.now() - ahead).toISOString();
export const duration = (ms) => seconds.format(ms / 1000);
export const number = (value) => numbers.format(value);
export const timeOfDay = (iso) => clock.format(new Date(iso));
export const fullTime = (iso) => moment.format(new Date(iso));
