// SPDX-License-Identifier: Apache-2.0

// Package top is the live view of a running weir in a terminal, as a pure
// function: what happens goes into Model.Update, what is shown comes out of
// Model.View as lines of text. It knows neither a terminal nor a clock, and asks
// nobody; `weir top` gives it keys, sizes and samples of the admin API.
package top
