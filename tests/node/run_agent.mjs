// Plays turns of a conversation through the real AG-UI client, and prints what it saw as one line of JSON.
//
// Its argument is JSON: {url, threadId, turns}. A turn is {say} or {answers}, with a token of its own; answers are by the
// tool call that an interrupt is about, and pass through the client's own helper for resuming.
import { HttpAgent, buildResumeArray } from "@ag-ui/client";

const { url, threadId, turns } = JSON.parse(process.argv[2]);
const agent = new HttpAgent({ url, threadId });
const seen = [];

for (const [number, turn] of turns.entries()) {
  const events = [];
  agent.headers = turn.token ? { Authorization: `Bearer ${turn.token}` } : {};
  const parameters = { runId: turn.runId ?? `${threadId}-${number + 1}`, tools: turn.tools ?? [] };
  if (turn.say) agent.addMessage({ id: `said-${number}`, role: "user", content: turn.say });
  if (turn.answers) {
    const responses = {};
    for (const interrupt of agent.pendingInterrupts) responses[interrupt.id] = turn.answers[interrupt.toolCallId];
    parameters.resume = buildResumeArray(agent.pendingInterrupts, responses);
  }
  let error = null;
  try {
    await agent.runAgent(parameters, { onEvent: ({ event }) => void events.push(event) });
  } catch (failed) {
    error = String(failed.message ?? failed);
  }
  seen.push({ events, error, interrupts: agent.pendingInterrupts });
}

console.log(JSON.stringify({ turns: seen, messages: agent.messages, state: agent.state }));
