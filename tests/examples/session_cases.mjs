// Cases that session.mjs does not cover: an outdated history, logits-reading rows, failures, rejected requests, a
// session that has ended. Prints one JSON object.
//
//     node session_cases.mjs HOST:PORT NAME_OF_A_DOUBLING_PROCESSOR NAME_OF_A_FAILING_PROCESSOR

import { apply, builtin, connect, toTensor } from "../../examples/node/client.mjs";
import { EngineSession } from "../../examples/node/engine_session.mjs";

const [target, doubling, failing] = process.argv.slice(2);
const VOCAB_SIZE = 8;
const found = {};
const client = connect(target);
const named = (name) => ({ processor: { name }, params: Buffer.from("{}") });
const ones = (rows) => new Float32Array(rows * VOCAB_SIZE).fill(1);
const codeOf = async (promise) => promise.then(() => "none", (error) => error.code ?? error.name);

/** Makes steps until an admission has ended. */
async function untilAdmitted(admission) {
  let waiting = true;
  admission.catch(() => {}).finally(() => (waiting = false));
  while (waiting) {
    await session.step(new Map()).apply(ones(0));
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  return admission;
}

const session = await EngineSession.open(client, { vocab_size: VOCAB_SIZE });
const unrepeating = await session.add({
  prompt_token_ids: [1, 2],
  processors: [builtin("no_repeat_ngram", { ngram_size: 2 })],
});
const reading = await session.add({
  processors: [named(doubling), builtin("disallowed_tokens", { token_ids: [0] })],
});
const broken = await session.add({ processors: [named(failing)] });
const skipping = await session.add({ processors: [named(failing)], on_error: "ON_ERROR_SKIP" });

unrepeating.append([1]); // the server lacks this id: it replies NEED_SYNC, and denies 2 once it has the history
const logits = ones(4);
const step = session.step(new Map([unrepeating, reading, broken, skipping].map((handle) => [handle, []])));
const { failures, skipped, applied } = await step.apply(logits);
found.logits = Array.from(logits);
found.failures = [failures.size, failures.get(broken)?.code, failures.get(broken)?.remoteTraceback];
found.skipped = [skipped.size, skipped.get(skipping)?.code];
found.applied = applied;

await session.remove(broken);
const again = await session.add({ output_token_ids: [3] });
found.reused_slot = again.slot === broken.slot && again.generation !== broken.generation;
found.placeholder = await codeOf((async () => session.step(new Map([[again, [-1]]])))());
found.unknown_processor = await codeOf(session.add({ processors: [builtin("no_such", {})] }));
found.wrong_params = await codeOf(session.add({ processors: [builtin("disallowed_tokens", { token_ids: "x" })] }));
found.wrong_rows = await codeOf(apply(client, { logits: toTensor(ones(2), VOCAB_SIZE), requests: [{}] }));

const slow = await Promise.all([
  codeOf(untilAdmitted(session.addInBackground({ processors: [named("nobody/nothing")] }))),
  untilAdmitted(session.addInBackground({ processors: [named(doubling)] })),
  session.addInBackground({ processors: [builtin("disallowed_tokens", { token_ids: [0] })] }),
]);
found.refused_in_background = slow.shift();
const doubled = ones(2);
await session.step(new Map(slow.map((handle) => [handle, []]))).apply(doubled);
found.in_background = Array.from(doubled);
const lost = session.addInBackground({ processors: [named(doubling)] });
await session.end();
found.lost = await codeOf(lost.then(() => "admitted"));
found.ended = await codeOf(session.add({}));

console.log(JSON.stringify(found));
client.close();
