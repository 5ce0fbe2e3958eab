package anthropic

// Body is the encoding of a request.
var Body = body
