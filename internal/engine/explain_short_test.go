// SPDX-License-Identifier: Apache-2.0

//go:build !long

package engine

const explainedConfigurations = 300
