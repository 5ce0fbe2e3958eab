// Makes one model call with an official client: client.mjs PROTOCOL plain|stream MODEL TEXT.
// It prints "first" after the first text of a stream, and then a JSON object with the
// answer or the error. SIGTERM aborts the call with the client's own means.
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'

const [protocol, kind, model, text] = process.argv.slice(2)
const base = process.env.BASE_URL
const apiKey = process.env.API_KEY
const abort = new AbortController()
process.on('SIGTERM', () => abort.abort())
const options = { signal: abort.signal }

let isFirst = true
function first() {
  if (isFirst) console.log('first')
  isFirst = false
}

// The text "shape" is sent with an image and a format of the answer.
const dot = 'R0lGODlhAQABAAAAAA=='
const schema = { type: 'object', properties: {}, additionalProperties: false }
const shaped = (params) => (text === 'shape' ? params : {})

const openai = () => new OpenAI({ baseURL: base + '/v1', apiKey, maxRetries: 0 })

const protocols = {
  async openai() {
    const params = {
      model, user: 'lucky', messages: [{ role: 'system', content: 'be brief' }, { role: 'user', content: text }],
      tools: [{ type: 'function', function: { name: 'look', parameters: { type: 'object' } } }],
      ...shaped({
        messages: [{ role: 'user', content: [{ type: 'text', text }, { type: 'image_url', image_url: { url: 'data:image/gif;base64,' + dot } }] }],
        response_format: { type: 'json_schema', json_schema: { name: 'n', schema, strict: true } }, tools: undefined,
      }),
    }
    let answer
    if (kind === 'plain') {
      answer = await openai().chat.completions.create(params, options)
    } else {
      const stream = openai().chat.completions.stream({ ...params, stream_options: { include_usage: true } }, options)
      stream.on('content', first)
      answer = await stream.finalChatCompletion()
    }
    const { message, finish_reason: finish } = answer.choices[0]
    return {
      text: message.content, finish, calls: (message.tool_calls ?? []).map((c) => c.function.name + c.function.arguments),
      input: answer.usage.prompt_tokens, output: answer.usage.completion_tokens,
    }
  },

  async responses() {
    const params = {
      model, user: 'lucky', instructions: 'be brief', input: text,
      tools: [{ type: 'function', name: 'look', parameters: { type: 'object' }, strict: false }],
      ...shaped({
        input: [{ role: 'user', content: [{ type: 'input_text', text }, { type: 'input_image', detail: 'auto', image_url: 'data:image/gif;base64,' + dot }] }],
        text: { format: { type: 'json_schema', name: 'n', schema, strict: true } }, tools: undefined,
      }),
    }
    let answer
    if (kind === 'plain') {
      answer = await openai().responses.create(params, options)
    } else {
      const stream = openai().responses.stream(params, options)
      stream.on('response.output_text.delta', first)
      answer = await stream.finalResponse()
    }
    return {
      text: answer.output.filter((item) => item.type === 'message').flatMap((m) => m.content).map((c) => c.text).join(''), // the stream's answer has no output_text
      finish: answer.status,
      calls: answer.output.filter((item) => item.type === 'function_call').map((c) => c.name + c.arguments),
      input: answer.usage.input_tokens, output: answer.usage.output_tokens,
    }
  },

  async anthropic() {
    const client = new Anthropic({ baseURL: base + '/anthropic', apiKey, maxRetries: 0 })
    const params = {
      model, max_tokens: 100, system: 'be brief', metadata: { user_id: 'lucky' }, messages: [{ role: 'user', content: text }],
      tools: [{ name: 'look', input_schema: { type: 'object' } }],
      ...shaped({
        messages: [{ role: 'user', content: [{ type: 'text', text }, { type: 'image', source: { type: 'base64', media_type: 'image/gif', data: dot } }] }],
        output_config: { format: { type: 'json_schema', schema } }, tools: undefined,
      }),
    }
    let answer
    if (kind === 'plain') {
      answer = await client.messages.create(params, options)
    } else {
      const stream = client.messages.stream(params, options)
      stream.on('text', first)
      answer = await stream.finalMessage()
    }
    return {
      text: answer.content.filter((b) => b.type === 'text').map((b) => b.text).join(''), finish: answer.stop_reason,
      calls: answer.content.filter((b) => b.type === 'tool_use').map((b) => b.name + JSON.stringify(b.input)),
      input: answer.usage.input_tokens, output: answer.usage.output_tokens,
    }
  },
}

try {
  console.log(JSON.stringify(await protocols[protocol]()))
} catch (err) {
  const body = err.error?.error ?? err.error
  console.log(JSON.stringify({ error: String(err.message), aborted: abort.signal.aborted, status: err.status ?? 0, type: body?.type ?? err.type ?? '' }))
}
