// The checks of test/e2e with real engines, in JavaScript. Environment: LEVELRAIL_URL, _ENGINE, _MODEL, _KEY, _KEY_ONE, and
// SDK_DIR, where the library is installed.
import assert from 'node:assert/strict';
import { File } from 'node:buffer';
import { createRequire } from 'node:module';

globalThis.File ??= File; // Node 18 has it, but not there
const OpenAI = createRequire(process.env.SDK_DIR + '/')('openai');
const { toFile } = OpenAI;
const env = process.env;
const ENGINE = env.LEVELRAIL_ENGINE, model = env.LEVELRAIL_MODEL;

const client = (key = env.LEVELRAIL_KEY, maxRetries = 0) => new OpenAI({ baseURL: env.LEVELRAIL_URL + '/v1', apiKey: key, maxRetries, timeout: 120_000 });
const api = client();
const one = (retries = 0) => client(env.LEVELRAIL_KEY_ONE, retries);
const hello = { model, messages: [{ role: 'user', content: 'Say hello.' }], max_tokens: 8, temperature: 0, seed: 1 };
const weather = { name: 'weather', description: 'The weather of a city.', parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } };
const schema = { type: 'object', properties: { ok: { type: 'boolean' } }, required: ['ok'], additionalProperties: false };
const chat = (more = {}, c = api) => c.chat.completions.create({ ...hello, ...more });
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function refused(kind, call, status, code) {
  try {
    await call();
  } catch (e) {
    assert.ok(e instanceof kind, `${e?.constructor?.name}: ${e}`);
    assert.equal(e.status, status);
    if (code) assert.equal(e.code, code);
    return e;
  }
  assert.fail(`no ${kind.name}`);
}

async function hold() {
  const stream = await chat({ max_tokens: 4000, stream: true, messages: [{ role: 'user', content: 'Count from one to a thousand, in words.' }] }, one());
  await stream[Symbol.asyncIterator]().next();
  return stream;
}

const checks = {
  async models() {
    const ids = [];
    for await (const m of api.models.list()) ids.push(m.id);
    assert.ok(ids.includes(model), ids.join());
    for (const id of ids) assert.equal((await api.models.retrieve(id)).id, id);
  },
  async chat() {
    const a = await chat();
    assert.ok(a.choices[0].message.content && a.usage.completion_tokens > 0 && a.usage.completion_tokens <= 8 && a.usage.prompt_tokens > 0, JSON.stringify(a));
  },
  async chat_stream() {
    const whole = (await chat()).choices[0].message.content;
    for (const asked of [false, true]) {
      let said = '', usage = null, n = 0;
      for await (const c of await chat({ stream: true, ...(asked && { stream_options: { include_usage: true } }) })) {
        n++;
        usage = c.usage ?? usage;
        for (const choice of c.choices) said += choice.delta.content ?? '';
      }
      assert.deepEqual([said, n >= 3, usage !== null], [whole, true, asked]);
    }
  },
  async tools() {
    const ask = () => chat({ tools: [{ type: 'function', function: weather }], messages: [{ role: 'user', content: 'How is the weather in Paris?' }], max_tokens: 60 });
    if (ENGINE === 'ollama') return refused(OpenAI.BadRequestError, ask, 400); // of a model whose template has no tools
    const said = (await ask()).choices[0].message;
    assert.ok(said.tool_calls?.length || said.content, JSON.stringify(said)); // the model is too small to rely on a call
    for (const call of said.tool_calls ?? []) assert.equal(typeof JSON.parse(call.function.arguments), 'object');
  },
  async json_mode() {
    const a = await chat({ max_tokens: 60, response_format: { type: 'json_schema', json_schema: { name: 's', schema } } });
    assert.equal(typeof JSON.parse(a.choices[0].message.content).ok, 'boolean');
  },
  async completions() {
    const a = await api.completions.create({ model, prompt: 'One, two,', max_tokens: 4, temperature: 0 });
    assert.ok(a.choices[0].text && a.usage.completion_tokens > 0, JSON.stringify(a));
  },
  async embeddings() {
    const ask = () => api.embeddings.create({ model, input: ['one', 'two'] });
    if (ENGINE === 'llamacpp') return refused(OpenAI.BadRequestError, ask, 400, 'unsupported_by_model'); // of a model that is not served for it
    const a = await ask();
    assert.deepEqual(a.data.map((e) => e.embedding.length), [576, 576]);
    assert.ok(a.usage.prompt_tokens >= 2);
  },
  async responses() {
    const ask = { model, input: 'Say hello.', max_output_tokens: 16, temperature: 0 };
    const a = await api.responses.create(ask);
    assert.ok(a.output_text && a.usage.output_tokens > 0, JSON.stringify(a));
    let last;
    for await (const event of await api.responses.create({ ...ask, stream: true })) last = event;
    assert.ok(['response.completed', 'response.incomplete'].includes(last.type) && last.response.usage.output_tokens > 0, JSON.stringify(last));
    const built = api.responses.stream(ask); // the library builds the answer from events
    let text = '';
    built.on('response.output_text.delta', (e) => { text += e.delta; });
    const whole = await built.finalResponse();
    assert.ok(text && whole.output_text === text && whole.usage.output_tokens_details, JSON.stringify(whole));
  },
  async audio() {
    const file = await toFile(Buffer.from('RIFF'), 'a.wav', { type: 'audio/wav' });
    await refused(OpenAI.NotFoundError, () => api.audio.transcriptions.create({ model, file }), 404, 'unknown_url');
  },
  async errors() {
    await refused(OpenAI.AuthenticationError, () => chat({}, client('lr-wrong')), 401, 'invalid_api_key');
    await refused(OpenAI.NotFoundError, () => chat({ model: 'gpt-4o' }), 404, 'model_not_found');
    assert.equal((await refused(OpenAI.BadRequestError, () => chat({ max_tokens: 1e12 }), 400, 'invalid_body')).param, 'max_tokens');
  },
  async retries() {
    const stream = await hold();
    const e = await refused(OpenAI.RateLimitError, () => chat({}, one()), 429, 'rate_limit_exceeded');
    const wait = Number(e.headers.get('retry-after'));
    setTimeout(() => stream.controller.abort(), 200);
    const began = Date.now();
    assert.ok((await chat({}, one(4))).choices.length);
    assert.ok(wait >= 1 && Date.now() - began > wait * 900, `${wait} s, ${Date.now() - began} ms`);
  },
  async cancel() {
    (await hold()).controller.abort();
    for (const deadline = Date.now() + 5000; ; await pause(50)) {
      try {
        return await chat({}, one());
      } catch (e) {
        if (!(e instanceof OpenAI.RateLimitError)) throw e;
        assert.ok(Date.now() < deadline, 'the slot is not given back');
      }
    }
  },
};

for (const [name, check] of Object.entries(checks)) {
  let error = '';
  try {
    await check();
  } catch (e) {
    error = String(e?.stack ?? e).slice(0, 2000);
  }
  console.log(JSON.stringify({ name, error }));
}
process.exit(0);
