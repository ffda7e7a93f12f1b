// What OpenAI's JavaScript library builds from a stream of a real llama-server. Environment: LEVELRAIL_URL, _KEY, and SDK_DIR.
import assert from 'node:assert/strict';
import { File } from 'node:buffer';
import { createRequire } from 'node:module';

globalThis.File ??= File; // Node 18 has it, but not there
const OpenAI = createRequire(process.env.SDK_DIR + '/')('openai');
const api = new OpenAI({ baseURL: process.env.LEVELRAIL_URL + '/v1', apiKey: process.env.LEVELRAIL_KEY, maxRetries: 0, timeout: 120_000 });

const checks = {
  async responses_stream() {
    const stream = api.responses.stream({ model: 'chat', input: 'Say hello.', max_output_tokens: 8, temperature: 0 });
    let text = '';
    stream.on('response.output_text.delta', (e) => { text += e.delta; });
    const whole = await stream.finalResponse();
    assert.ok(text && whole.output_text === text && whole.usage.output_tokens_details, JSON.stringify(whole));
  },
  async fault() {
    await assert.rejects(api.embeddings.create({ model: 'chat', input: 'x' }), (e) => e instanceof OpenAI.BadRequestError && e.code === 'unsupported_by_model');
  },
};

for (const [name, check] of Object.entries(checks)) {
  let error = '';
  try {
    await check();
  } catch (e) {
    error = String(e?.stack ?? e);
  }
  console.log(JSON.stringify({ name, error }));
}
