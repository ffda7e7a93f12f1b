// The AI SDK with @ai-sdk/openai-compatible. Environment: as test/sdk's own suites; SDK_DIR is where it is installed.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const require = createRequire(process.env.SDK_DIR + '/');
const { generateText, streamText, generateObject, streamObject, embedMany, tool, stepCountIs, APICallError, RetryError } = require('ai');
const { createOpenAICompatible } = require('@ai-sdk/openai-compatible');
const { z } = require('zod');
const env = process.env;
const REAL = env.LEVELRAIL_MODEL, MODEL = REAL ?? 'chat', SAID = 'You said: one two three';

const provider = (key = env.LEVELRAIL_KEY) =>
  createOpenAICompatible({ name: 'levelrail', baseURL: env.LEVELRAIL_URL + '/v1', apiKey: key, includeUsage: true, supportsStructuredOutputs: true });
const ask = (more = {}, key, model = MODEL) => ({ model: provider(key)(model), prompt: 'one two three', maxRetries: 0, maxOutputTokens: 64, temperature: 0, ...more });
const said = (text) => assert.ok(text === SAID || (REAL && text), text);
const schema = z.object(REAL ? { ok: z.boolean() } : { ok: z.boolean(), city: z.string() }); // a small model may talk in a string until its tokens are used up
const weather = tool({ description: 'The weather of a city.', inputSchema: z.object({ city: z.string(), days: z.number().int() }), execute: async () => 'sunny' });

async function refused(call, status, code) {
  try {
    await call();
  } catch (e) {
    assert.ok(APICallError.isInstance(e), `${e?.name}: ${e}`);
    assert.equal(e.statusCode, status);
    assert.equal(JSON.parse(e.responseBody).error.code, code);
    return e;
  }
  assert.fail('no error');
}

const everywhere = {
  async chat() {
    const a = await generateText(ask());
    said(a.text);
    assert.ok(a.usage.inputTokens > 0 && a.usage.outputTokens > 0, JSON.stringify(a.usage));
  },
  async stream() {
    const s = streamText(ask());
    let text = '';
    for await (const part of s.textStream) text += part;
    said(text);
    assert.ok((await s.usage).outputTokens > 0);
  },
  async structured() {
    const { object } = await generateObject(ask({ schema }));
    assert.equal(typeof object.ok, 'boolean');
    const s = streamObject(ask({ schema }));
    let last;
    for await (const part of s.partialObjectStream) last = part;
    assert.equal(typeof last.ok, 'boolean');
  },
  async errors() {
    await refused(() => generateText(ask({}, 'lr-wrong')), 401, 'invalid_api_key');
    await refused(() => generateText(ask({}, undefined, 'other')), 404, 'model_not_found');
  },
};
const overStub = {
  async tools() {
    const a = await generateText(ask({ prompt: 'Paris', tools: { weather }, stopWhen: stepCountIs(2) }));
    assert.deepEqual(a.steps[0].toolCalls.map((c) => [c.toolName, c.input]), [['weather', { city: 'Paris', days: 7 }]]);
    assert.equal(a.text, 'The tool said: sunny');
    const s = streamText(ask({ prompt: 'Paris', tools: { weather } }));
    const calls = [];
    for await (const part of s.fullStream) if (part.type === 'tool-call') calls.push([part.toolName, part.input]);
    assert.deepEqual(calls, [['weather', { city: 'Paris', days: 7 }]]);
  },
  async embeddings() {
    const values = Array.from({ length: 32 }, (_, i) => `text number ${i}`);
    const a = await embedMany({ model: provider().embeddingModel?.(MODEL) ?? provider().textEmbeddingModel(MODEL), values, maxRetries: 0 });
    assert.deepEqual([a.embeddings.length, a.embeddings[0].length], [32, 16]);
  },
  async retry() {
    await refused(() => generateText(ask({}, env.LEVELRAIL_KEY_SPENT)), 429, 'rate_limit_exceeded');
    const began = Date.now();
    await assert.rejects(generateText(ask({ maxRetries: 1 }, env.LEVELRAIL_KEY_SPENT)), (e) => RetryError.isInstance(e) && e.lastError.statusCode === 429);
    const took = Date.now() - began;
    assert.ok(took > 900, `it did not wait for Retry-After, but ${took} ms`);
  },
};

for (const [name, check] of Object.entries(REAL ? everywhere : { ...everywhere, ...overStub })) {
  let error = '';
  try {
    await check();
  } catch (e) {
    error = String(e?.stack ?? e).slice(0, 2000);
  }
  console.log(JSON.stringify({ name, error }));
}
process.exit(0);
