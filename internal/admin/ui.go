// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"embed"
	"net/http"
)

// The page is plain files: what is served is what is in ui/, without a build.
//
//go:embed ui/index.html ui/app.js ui/view.js ui/api.js ui/style.css
var uiFiles embed.FS

// uiTypes are the files and their types; nothing else is served.
var uiTypes = map[string]string{
	"index.html": "text/html; charset=utf-8",
	"app.js":     "text/javascript; charset=utf-8",
	"view.js":    "text/javascript; charset=utf-8",
	"api.js":     "text/javascript; charset=utf-8",
	"style.css":  "text/css; charset=utf-8",
}

func registerUI(mux *http.ServeMux) {
	for name, typ := range uiTypes {
		path := "/ui/" + name
		if name == "index.html" {
			path = "/{$}"
		}
		mux.Handle(path, only(func(w http.ResponseWriter, r *http.Request) {
			body, err := uiFiles.ReadFile("ui/" + name)
			if err != nil { // embedded above: cannot be missing
				problem(w, http.StatusInternalServerError, CodeInternal, err.Error())
				return
			}
			w.Header().Set("Content-Type", typ)
			w.Header().Set("Cache-Control", "no-cache")
			_, _ = w.Write(body) // the client may be gone; nobody else to tell
		}, http.MethodGet))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		problem(w, http.StatusNotFound, CodeNotFound, "no such page: "+r.URL.Path)
	})
}
