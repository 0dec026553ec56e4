// One connection of a session: numbered frames, their replies in order, and a watchdog for a server that has stopped.

import { once } from "node:events";
import grpc from "@grpc/grpc-js";
import { LogitportError, fromStatus } from "./client.mjs";

// A server that is alive replies within its own deadlines and this time.
const MARGIN_SECONDS = 10;
const LOST = new Set([grpc.status.UNAVAILABLE, grpc.status.CANCELLED]);
const wait = new grpc.Metadata({ waitForReady: true });

/** The connection was lost, or the server has not replied in time. */
export class ConnectionLost extends Error {
  name = "ConnectionLost";
  code = "UNAVAILABLE";
}

export class Connection {
  #call;
  #onReply;
  #timeout; // seconds
  #stepDeadline = 0; // seconds, as the server states them; 0 for none
  #addDeadline = 0;
  #seq = 0;
  #waiting = []; // {resolve, reject, seconds} of each frame without a reply, oldest first
  #timer;
  /** Why no more frames can be sent; null while they can. */
  ended = null;

  /**
   * @param {object} client from connect()
   * @param {number} timeout seconds to wait for a reply, whatever the server's deadlines are
   * @param {(reply: object) => void} onReply is called with each reply before its promise is settled
   * @param {boolean} waits whether to wait for a server that cannot be reached
   */
  constructor(client, timeout, onReply, waits) {
    this.#timeout = timeout;
    this.#onReply = onReply;
    this.#call = client.Session(waits ? wait : new grpc.Metadata());
    this.#call.on("data", (reply) => this.#receive(reply));
    this.#call.on("error", (status) => this.end(isLost(status) ? new ConnectionLost(status.message) : fromStatus(status)));
    this.#call.on("end", () => this.end(new ConnectionLost("the session has ended")));
  }

  /**
   * Sends the first frame.
   * @param {object} opening an OpenSession
   * @returns {Promise<object>} a SessionOpened
   * @throws {LogitportError} the server refuses the session
   */
  async open(opening) {
    const { opened } = await this.exchange({ open: opening });
    this.#stepDeadline = opened.step_deadline_seconds;
    this.#addDeadline = opened.add_deadline_seconds;
    return opened;
  }

  /** Sends a frame. Returns a promise of its reply. */
  exchange(frame) {
    return new Promise((resolve, reject) => {
      if (this.ended) throw this.ended;
      this.#waiting.push({ resolve, reject, seconds: this.#seconds(frame) });
      if (this.#waiting.length === 1) this.#watch();
      this.#call.write({ seq: ++this.#seq, ...frame });
    });
  }

  /** Ends the session. */
  async close() {
    if (this.ended) return;
    this.#call.end();
    await once(this.#call, "status");
  }

  /** Ends the connection: frames without a reply, and later ones, fail with this error. */
  end(error) {
    if (this.ended === null) {
      this.ended = error;
      clearTimeout(this.#timer);
      this.#call.cancel();
    }
    for (const { reject } of this.#waiting.splice(0)) reject(this.ended);
  }

  #seconds({ add }) {
    const deadline = add ? this.#addDeadline * Math.max(1, add.requests?.length ?? 0) : this.#stepDeadline;
    return deadline > 0 ? Math.min(deadline + MARGIN_SECONDS, this.#timeout) : this.#timeout;
  }

  /** Starts the time of the oldest frame without a reply. */
  #watch() {
    clearTimeout(this.#timer);
    if (this.#waiting.length === 0) return;
    const { seconds } = this.#waiting[0];
    const error = new ConnectionLost(`the server has not replied to a frame within ${seconds} s`);
    this.#timer = setTimeout(() => this.end(error), seconds * 1000);
  }

  #receive(reply) {
    if (this.#waiting.length === 0) {
      this.end(new ConnectionLost("the server has sent a reply without a frame"));
      return;
    }
    const { resolve, reject } = this.#waiting.shift();
    this.#watch();
    this.#onReply(reply);
    if (reply.frame === "error") reject(new LogitportError(reply.error));
    else resolve(reply);
  }
}

/** Whether a status ends the connection only, so that another one may be opened. */
function isLost(status) {
  return LOST.has(status.code) || (status.code === grpc.status.INTERNAL && /RST_STREAM/.test(status.details));
}
