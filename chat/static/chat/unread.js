/* Which conversations have come to rest with something that this browser has not shown.

   Kept in this browser: conversation → the cursor up to which it was shown. One that it meets for
   the first time counts as read, or a new browser would begin with everything unread. */

const KEY = "agentsite.seen";

export class Unread {
  constructor(ownId) {
    this.ownId = ownId;
  }

  /* Read anew each time: another tab may have shown more. */
  get #seen() {
    try {
      return JSON.parse(localStorage.getItem(KEY)) ?? {};
    } catch {
      return {}; // no storage, or not ours: nothing is marked
    }
  }

  #save(seen) {
    try {
      localStorage.setItem(KEY, JSON.stringify(seen));
    } catch {
      // the marks are a convenience
    }
  }

  saw(id, cursor) {
    const seen = this.#seen;
    if (cursor <= (seen[id] ?? -1)) return;
    this.#save({ ...seen, [id]: cursor });
  }

  has({ id, status, cursor }) {
    return id !== this.ownId && (status === "idle" || status === "suspended") && cursor > (this.#seen[id] ?? cursor);
  }

  /* Remember the listed conversations, and no others for ever. */
  keep(items) {
    const seen = this.#seen;
    this.#save(Object.fromEntries(items.map(({ id, cursor }) => [id, seen[id] ?? cursor])));
  }
}
