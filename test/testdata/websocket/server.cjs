// SPDX-License-Identifier: Apache-2.0

// A server of npm's ws: node server.cjs PORT. It echoes, closes with the code that
// it is told, and prints the codes with which clients have closed.
const { WebSocketServer } = require('ws')

const server = new WebSocketServer({
  host: '127.0.0.1', port: Number(process.argv[2]), maxPayload: 1 << 26, perMessageDeflate: { threshold: 0 },
})
server.on('connection', (s) => {
  s.on('error', () => {})
  s.on('close', (code) => console.log(`closed ${code}`))
  s.on('message', (data, binary) => {
    const text = binary ? '' : String(data)
    if (text.startsWith('close ')) {
      s.close(Number(text.slice(6)), 'asked')
    } else if (text === 'fragments') {
      s.send('four ', { fin: false })
      s.send('five ', { fin: false })
      s.send('six')
    } else {
      s.send(data, { binary })
    }
  })
})
