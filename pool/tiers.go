// SPDX-License-Identifier: Apache-2.0

package pool

// defaultOverprovisioning is Envoy's factor: a tier bears its whole load as long
// as five in seven of it serve.
const defaultOverprovisioning = 1.4
