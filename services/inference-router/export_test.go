package router

import (
	"net/http"
	"time"

	"github.com/anima-run/anima/pkg/config"
)

// CheckEndpoints reports whether the setting for endpoints is valid for OpenAI.
func CheckEndpoints(setting string) error {
	sources, err := configured(Config{OpenAIKey: "key", Local: "auto"}, http.DefaultClient, time.Now)
	if err != nil {
		return err
	}
	return addEndpoints(sources, config.Secret(setting))
}
