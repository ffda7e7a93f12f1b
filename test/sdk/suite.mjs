// The checks of test/sdk in JavaScript. Environment: LEVELRAIL_URL, _ENGINE, _KEY, _KEY_BUSY, _KEY_LOADING, _KEY_SPENT,
// _KEY_METERED, and SDK_DIR, where the library is installed.
import assert from 'node:assert/strict';
import { File } from 'node:buffer';
import { createRequire } from 'node:module';

globalThis.File ??= File; // Node 18 has it, but not there
const OpenAI = createRequire(process.env.SDK_DIR + '/')('openai');
const { toFile } = OpenAI;
const env = process.env;
const ENGINE = env.LEVELRAIL_ENGINE;

const client = (key = env.LEVELRAIL_KEY, maxRetries = 0) => new OpenAI({ baseURL: env.LEVELRAIL_URL + '/v1', apiKey: key, maxRetries, timeout: 20_000 });
const api = client();
const messages = [{ role: 'user', content: 'one two three' }];
const SAID = 'You said: one two three';
const paris = [{ role: 'user', content: 'Paris' }];
const weather = {
  name: 'weather',
  parameters: { type: 'object', properties: { city: { type: 'string' }, days: { type: 'integer' } }, required: ['city', 'days'] },
};
const tools = [{ type: 'function', function: weather }];
const schema = { type: 'object', properties: { ok: { type: 'boolean' }, list: { type: 'array', items: { enum: ['a', 'b'] } } }, required: ['ok', 'list'] };
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const chat = (more = {}, c = api, options = undefined) => c.chat.completions.create({ model: 'chat', messages, ...more }, options);

async function refused(kind, call, status, code) {
  try {
    await call();
  } catch (e) {
    assert.ok(e instanceof kind, `${e?.constructor?.name}: ${e}`);
    assert.deepEqual([e.status, e.code], [status, code]);
    assert.ok(e.error.message && e.error.type);
    return e;
  }
  assert.fail(`no ${kind.name}`);
}

async function text(stream) {
  let said = '', usage = null, finish = null;
  for await (const c of stream) {
    usage = c.usage ?? usage;
    for (const choice of c.choices) {
      said += choice.delta.content ?? '';
      finish = choice.finish_reason ?? finish;
    }
  }
  return { said, usage, finish };
}

const ids = async () => {
  const out = [];
  for await (const m of api.models.list()) out.push(m);
  return out;
};
const busy = (retries = 0) => client(env.LEVELRAIL_KEY_BUSY, retries);
const askBusy = (c) => chat({ model: 'busy' }, c);
const holdBusy = () => chat({ model: 'busy', stream: true, stub: { endless: true, gap: '10ms' } }, busy());

async function untilFree() {
  for (const deadline = Date.now() + 2000; ; await pause(20)) {
    try {
      return await askBusy(busy());
    } catch (e) {
      if (!(e instanceof OpenAI.RateLimitError)) throw e;
      assert.ok(Date.now() < deadline, 'the slot is not given back');
    }
  }
}

async function broken(stub) {
  let said = 0;
  try {
    for await (const _ of await chat({ stream: true, stub: { events: 5, gap: '1ms', ...stub } })) said++;
  } catch (e) {
    assert.ok(said >= 2, `an error after ${said} chunks`);
    return e;
  }
  assert.fail(`half an answer looks whole, after ${said} chunks`);
}

const checks = {
  async models_list() {
    assert.deepEqual((await ids()).map((m) => m.id), ['chat', 'org/chat-7b', 'org/chat-7b:Q4_K_M', 'hf.co/org/chat-GGUF:Q4_K_M']);
  },
  async models_retrieve() {
    for (const m of await ids()) assert.deepEqual(JSON.parse(JSON.stringify(await api.models.retrieve(m.id))), JSON.parse(JSON.stringify(m)));
  },
  async chat() {
    const a = await chat();
    assert.deepEqual([a.choices[0].message.content, a.choices[0].finish_reason, a.usage.prompt_tokens], [SAID, 'stop', 3]);
    assert.ok(a.usage.completion_tokens > 0);
    assert.equal((await chat({ model: 'org/chat-7b:Q4_K_M' })).choices[0].message.content, SAID);
  },
  async chat_stream() {
    const a = await text(await chat({ stream: true, stream_options: { include_usage: true }, stub: { gap: '2ms' } }));
    assert.deepEqual([a.said, a.finish, a.usage.prompt_tokens], [SAID, 'stop', 3]);
    assert.equal((await text(await chat({ stream: true }))).usage, null);
  },
  async chat_stream_forms() {
    for (const form of [['crlf'], ['comments'], ['tight', 'fields'], ['crlf', 'comments', 'lines']])
      assert.equal((await text(await chat({ stream: true, stub: { form, split: 11, split_gap: '10us' } }))).said, SAID, form.join());
    assert.ok((await text(await chat({ stream: true, stub: { form: ['long'] } }))).said.length > 200_000);
  },
  async tools() {
    const a = await chat({ messages: paris, tools });
    const call = a.choices[0].message.tool_calls[0];
    assert.deepEqual([a.choices[0].finish_reason, call.function.name, JSON.parse(call.function.arguments)], ['tool_calls', 'weather', { city: 'Paris', days: 7 }]);
    const b = await chat({ tools, messages: [...paris, a.choices[0].message, { role: 'tool', tool_call_id: call.id, content: 'sunny' }] });
    assert.equal(b.choices[0].message.content, 'The tool said: sunny');
  },
  async tools_stream() {
    const runner = api.chat.completions.stream({ model: 'chat', messages: paris, tools });
    const call = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0];
    assert.deepEqual([call.function.name, JSON.parse(call.function.arguments)], ['weather', { city: 'Paris', days: 7 }]);
  },
  async json_mode() {
    const a = await chat({ response_format: { type: 'json_object' } });
    assert.deepEqual(JSON.parse(a.choices[0].message.content), { said: 'one two three' });
    const b = await chat({ response_format: { type: 'json_schema', json_schema: { name: 's', schema } } });
    assert.deepEqual(JSON.parse(b.choices[0].message.content), { ok: true, list: ['a'] });
  },
  async max_tokens() {
    const a = await chat({ max_completion_tokens: 2 });
    assert.deepEqual([a.choices[0].finish_reason, a.usage.completion_tokens], ['length', 2]);
  },
  async completions() {
    assert.equal((await api.completions.create({ model: 'chat', prompt: 'x' })).choices[0].text, 'You said: x');
    let said = '';
    for await (const c of await api.completions.create({ model: 'chat', prompt: 'x', stream: true })) said += c.choices[0]?.text ?? '';
    assert.equal(said, 'You said: x');
  },
  async embeddings() {
    const a = await api.embeddings.create({ model: 'chat', input: ['one', 'two'] });
    assert.deepEqual(a.data.map((e) => e.embedding.length), [16, 16]);
    for (const e of a.data) assert.ok(Math.abs(e.embedding.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-3);
    assert.equal(a.usage.prompt_tokens, 2);
  },
  async responses() {
    const a = await api.responses.create({ model: 'chat', input: 'hello' });
    assert.deepEqual([a.output_text, a.status, a.usage.input_tokens], ['You said: hello', 'completed', 1]);
    const b = await api.responses.create({ model: 'chat', input: 'Paris', tools: [{ type: 'function', strict: false, ...weather }] });
    assert.deepEqual([b.output[0].type, JSON.parse(b.output[0].arguments)], ['function_call', { city: 'Paris', days: 7 }]);
  },
  async responses_stream() {
    let said = '', last;
    for await (const event of await api.responses.create({ model: 'chat', input: 'hello', stream: true, stub: { gap: '2ms' } })) {
      if (event.type === 'response.output_text.delta') said += event.delta;
      last = event;
    }
    assert.deepEqual([said, last.type], ['You said: hello', 'response.completed']);
    assert.ok(last.response.usage.output_tokens > 0);
  },
  ...(ENGINE === 'vllm' && {
    async audio() {
      const sound = () => toFile(Buffer.from('12345'), 'a.wav', { type: 'audio/wav' });
      const said = 'You sent a.wav with 5 bytes.';
      assert.equal((await api.audio.transcriptions.create({ model: 'chat', file: await sound() })).text, said);
      assert.equal((await api.audio.translations.create({ model: 'chat', file: await sound() })).text, said);
      assert.equal(await api.audio.transcriptions.create({ model: 'chat', file: await sound(), response_format: 'text' }), said + '\n');
      let streamed = '';
      for await (const e of await api.audio.transcriptions.create({ model: 'chat', file: await sound(), stream: true })) if (e.type === 'transcript.text.delta') streamed += e.delta;
      assert.equal(streamed, said);
    },
  }),
  async long_answer() {
    const a = await chat({ messages: [{ role: 'user', content: 'x'.repeat(300_000) }], stub: { bytes: 400_000 } });
    assert.ok(a.choices[0].message.content.length > 390_000);
  },
  async compressed() {
    const a = await chat({ stub: { compress: true } });
    assert.deepEqual([a.choices[0].message.content, a.usage.prompt_tokens], [SAID, 3]);
    assert.equal((await text(await chat({ stream: true, stub: { compress: true } }))).said, SAID);
    assert.equal((await chat({ stub: { compress: true } }, api, { headers: { 'Accept-Encoding': 'br' } })).choices[0].message.content, SAID);
  },
  async error_401() {
    await refused(OpenAI.AuthenticationError, () => client('lr-wrong').models.list(), 401, 'invalid_api_key');
    await refused(OpenAI.AuthenticationError, () => chat({}, client('lr-wrong')), 401, 'invalid_api_key');
  },
  async error_404() {
    await refused(OpenAI.NotFoundError, () => chat({ model: 'other' }), 404, 'model_not_found');
    await refused(OpenAI.NotFoundError, () => api.models.retrieve('org/other'), 404, 'model_not_found');
    await refused(OpenAI.NotFoundError, () => api.post('/score', { body: {} }), 404, 'unknown_url');
  },
  async error_400() {
    const e = await refused(OpenAI.BadRequestError, () => chat({ n_predict: 5 }), 400, 'invalid_body');
    assert.equal(e.param, 'n_predict');
  },
  async error_of_engine() {
    await assert.rejects(chat({ stub: { status: 422 } }), (e) => e instanceof OpenAI.UnprocessableEntityError && /the stub was told to answer 422/.test(e.message));
  },
  async error_503() {
    const e = await refused(OpenAI.InternalServerError, () => chat({ model: 'loading' }, client(env.LEVELRAIL_KEY_LOADING)), 503, 'model_loading');
    assert.equal(e.headers.get('retry-after'), '1');
  },
  async error_429_and_retry() {
    await untilFree();
    const stream = await holdBusy();
    const e = await refused(OpenAI.RateLimitError, () => askBusy(busy()), 429, 'rate_limit_exceeded');
    assert.equal(e.headers.get('retry-after'), '1');
    setTimeout(() => stream.controller.abort(), 300);
    const began = Date.now();
    assert.equal((await askBusy(busy(3))).choices[0].message.content, SAID);
    const took = Date.now() - began;
    assert.ok(took > 900 && took < 5000, `retried after ${took} ms`);
  },
  async error_429_of_key() {
    const began = Date.now();
    const e = await refused(OpenAI.RateLimitError, () => chat({}, client(env.LEVELRAIL_KEY_SPENT, 1)), 429, 'rate_limit_exceeded');
    assert.equal(e.headers.get('retry-after'), '1');
    const took = Date.now() - began;
    assert.ok(took > 900 && took < 5000, `retried after ${took} ms`);
  },
  async usage_not_asked() {
    const metered = client(env.LEVELRAIL_KEY_METERED);
    const chunks = async (stream) => {
      const all = [];
      for await (const { id, created, ...rest } of stream) all.push(rest);
      assert.ok(all.length >= 3);
      return all;
    };
    for (const stream_options of [undefined, { include_usage: false }, { include_usage: true }]) {
      const [a, b] = [await chunks(await chat({ stream: true, stream_options }, metered)), await chunks(await chat({ stream: true, stream_options }))];
      assert.deepEqual(a, b);
      const ask = async (c) => chunks(await c.completions.create({ model: 'chat', prompt: 'one two three', stream: true, stream_options }));
      assert.deepEqual(await ask(metered), await ask(api));
    }
  },
  async cancel() {
    await untilFree();
    for (let round = 0; round < 3; round++) {
      let i = 0;
      for await (const _ of await holdBusy()) if (i++ === 3) break; // leaving the loop ends the request
      await untilFree();
    }
  },
  async engine_cut() {
    await broken({ end: 'cut', at: 2 });
  },
  async engine_dying_words() {
    if (ENGINE !== 'ollama') assert.ok((await broken({ end: 'error', at: 2 })) instanceof OpenAI.APIError);
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
