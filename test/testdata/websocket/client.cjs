// SPDX-License-Identifier: Apache-2.0

// A client of npm's ws: node client.cjs URL CASE... prints what came of each case.
const WebSocket = require('ws')

const [url, ...cases] = process.argv.slice(2)

const open = (options) =>
  new Promise((resolve, reject) => {
    const s = new WebSocket(url, { perMessageDeflate: false, maxPayload: 1 << 26, ...options })
    s.once('open', () => resolve(s))
    s.once('error', reject)
  })

const closed = (s) => new Promise((resolve) => s.once('close', (code, reason) => resolve(`${code} ${reason}`)))

const answer = (s) =>
  new Promise((resolve, reject) => {
    s.once('message', (data) => resolve(data))
    s.once('close', (code) => reject(new Error(`closed ${code}`)))
  })

const run = {
  async echo(size) {
    const s = await open()
    const data = Buffer.alloc(Number(size), 'weir')
    const back = answer(s)
    s.send(data)
    const same = data.equals(await back)
    s.close(1000)
    await closed(s)
    return same ? 'ok' : 'something else came back'
  },
  async fragments() {
    const s = await open()
    let back = answer(s)
    s.send('one ', { fin: false })
    s.ping('between')
    s.send('two ', { fin: false })
    s.send('three')
    const first = String(await back)
    back = answer(s)
    s.send('fragments')
    const second = String(await back)
    s.close(1000)
    await closed(s)
    return `${first}, ${second}`
  },
  async deflate() {
    const s = await open({ perMessageDeflate: { threshold: 0 } })
    const text = 'compressible '.repeat(20000)
    const back = answer(s)
    s.send(text)
    const same = String(await back) === text
    const how = s.extensions.split(';')[0]
    s.close(1000)
    await closed(s)
    return same ? how : 'something else came back'
  },
  async ping() {
    const s = await open()
    const pong = new Promise((resolve) => s.once('pong', (data) => resolve(String(data))))
    s.ping('are you there')
    const got = await pong
    s.close(1000)
    await closed(s)
    return got
  },
  async leave(code) {
    const s = await open()
    const end = closed(s)
    s.close(Number(code), 'leaving')
    return end
  },
  async left(code) {
    const s = await open()
    const end = closed(s)
    s.send(`close ${code}`)
    return end
  },
}

const main = async () => {
  for (const c of cases) {
    const [name, arg] = c.split(' ')
    let said
    try {
      said = await run[name](arg)
    } catch (e) {
      said = `failed: ${e.message}`
    }
    console.log(`${c}: ${said}`)
  }
  process.exit(0)
}
main()
