/**
 * Where are conversations kept? In the browser's IndexedDB: heads, which the list reads, apart from the messages.
 *
 *     heads   {id, title, updated}
 *     bodies  a whole conversation, see chat/conversation.js
 */

const NAME = "splitserve";
const VERSION = 1;
const STORES = ["heads", "bodies"];

/** The conversations of this browser. */
export class ConversationStore {
  /** Open the store; without IndexedDB conversations last as long as the page. */
  static async open() {
    try {
      return new ConversationStore(await openDatabase());
    } catch {
      return new ConversationStore(null);
    }
  }

  constructor(database) {
    this.database = database;
    this.memory = new Map();
  }

  /** Whether conversations outlast the page. */
  get isKept() {
    return this.database !== null;
  }

  /** Return the heads of all conversations, the latest first. */
  async list() {
    const heads = this.database
      ? await this.#run("readonly", (stores) => stores.heads.getAll())
      : [...this.memory.values()].map(headOf);
    return heads.sort((one, other) => other.updated - one.updated);
  }

  /** Return a conversation, undefined if there is none of this id. */
  async get(id) {
    if (!this.database) return structuredClone(this.memory.get(id));
    return this.#run("readonly", (stores) => stores.bodies.get(id));
  }

  /** Return all conversations. */
  async all() {
    if (!this.database) return [...this.memory.values()];
    return this.#run("readonly", (stores) => stores.bodies.getAll());
  }

  /** Keep conversations, in place of those of the same ids. */
  async put(...conversations) {
    if (!this.database) {
      for (const each of conversations) this.memory.set(each.id, structuredClone(each));
      return;
    }
    await this.#run("readwrite", (stores) => {
      for (const each of conversations) {
        stores.heads.put(headOf(each));
        stores.bodies.put(each);
      }
    });
  }

  /** Forget a conversation. */
  async remove(id) {
    this.memory.delete(id);
    if (!this.database) return;
    await this.#run("readwrite", (stores) => {
      stores.heads.delete(id);
      stores.bodies.delete(id);
    });
  }

  /** Forget all conversations. */
  async clear() {
    this.memory.clear();
    if (!this.database) return;
    await this.#run("readwrite", (stores) => {
      stores.heads.clear();
      stores.bodies.clear();
    });
  }

  #run(mode, work) {
    return new Promise((resolve, reject) => {
      const transaction = this.database.transaction(STORES, mode);
      const stores = Object.fromEntries(STORES.map((name) => [name, transaction.objectStore(name)]));
      const request = work(stores);
      transaction.oncomplete = () => resolve(request?.result);
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
  }
}

const headOf = ({ id, title, updated }) => ({ id, title, updated });

function openDatabase() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      for (const store of STORES) request.result.createObjectStore(store, { keyPath: "id" });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
