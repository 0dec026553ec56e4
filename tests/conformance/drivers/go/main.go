// The driver of the Go package: see tests/conformance/driver_process.py.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"logitport"
)

type driver struct {
	target  string
	session *logitport.Session
	handles map[string]logitport.Handle
	names   map[logitport.Handle]string
	width   int
	steps   int
}

type object = map[string]any

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func number(text string) int { return must(strconv.Atoi(text)) }

func seconds(text string) time.Duration {
	return time.Duration(must(strconv.ParseFloat(text, 64)) * float64(time.Second))
}

func ids(list string) []int32 {
	var found []int32
	for _, one := range strings.Split(list, ",") {
		if one != "" {
			found = append(found, int32(number(one)))
		}
	}
	return found
}

func (d *driver) open(words []string) (object, error) {
	d.width = number(words[0])
	options := logitport.Options{
		VocabSize: d.width, MaxDraftTokens: number(words[1]), EOSTokenIDs: ids(words[2]),
		Timeout: seconds(words[3]), Reconnect: seconds(words[4]),
	}
	var err error
	if d.target == "embedded" {
		d.session, err = logitport.OpenEmbedded(options)
	} else {
		d.session, err = logitport.Open(d.target, options)
	}
	return object{}, err
}

func processor(word string) logitport.Processor {
	name, params, _ := strings.Cut(word, "=")
	values := json.RawMessage(params)
	switch {
	case strings.Contains(name, "/"):
		return logitport.Named(name, values)
	case len(name) == 64:
		return logitport.Digest(name, values)
	}
	return logitport.Builtin(name, values)
}

func (d *driver) add(words []string) (object, error) {
	request := logitport.Request{
		RequestID: words[0], SkipsOnError: words[1] == "1", PromptIDs: ids(words[2]), OutputIDs: ids(words[3]),
	}
	for _, word := range words[4:] {
		request.Processors = append(request.Processors, processor(word))
	}
	admission, err := d.session.Add(request)
	if err != nil {
		return nil, err
	}
	d.handles[words[0]], d.names[admission.Handle] = admission.Handle, words[0]
	return object{"reads_logits": admission.ReadsLogits}, nil
}

func (d *driver) step(words []string) (object, error) {
	var requests []logitport.StepRequest
	var rows []logitport.Row
	places := map[string]int{}
	for index, word := range words {
		if word == "rows" {
			rows = []logitport.Row{}
			for _, each := range words[index+1:] {
				name, offset, _ := strings.Cut(each, "+")
				rows = append(rows, logitport.Row{Request: places[name], DraftOffset: number(offset)})
			}
			break
		}
		parts := strings.Split(word, ":")
		places[parts[0]] = index
		requests = append(requests, logitport.StepRequest{
			Handle: d.handles[parts[0]], NewIDs: ids(parts[1]), DraftIDs: ids(parts[2]), DraftParents: ids(parts[3]),
		})
	}
	d.steps++
	step, err := d.session.Step(requests, rows)
	if err != nil {
		return nil, err
	}
	logits := make([]float32, step.Rows*d.width)
	for index := range logits {
		logits[index] = float32((13*d.steps+31*(index/d.width)+17*(index%d.width))%101)/8 - 4
	}
	result, err := step.Apply(logits)
	if err != nil {
		return nil, err
	}
	return d.output(result, logits), nil
}

func (d *driver) output(result *logitport.Result, logits []float32) object {
	lines := []string{}
	for row := 0; row < len(logits); row += d.width {
		var bytes []byte
		for _, value := range logits[row : row+d.width] {
			bytes = binary.LittleEndian.AppendUint32(bytes, math.Float32bits(value))
		}
		lines = append(lines, hex.EncodeToString(bytes))
	}
	failures := object{}
	for handle, err := range result.Failures {
		failures[d.names[handle]] = object{"code": err.Code, "skipped": false, "message": err.Message}
	}
	for handle, err := range result.Skipped {
		failures[d.names[handle]] = object{"code": err.Code, "skipped": true, "message": err.Message}
	}
	events := [][]any{}
	for _, one := range result.Events {
		values := one.Values
		if values == nil {
			values = json.RawMessage("{}")
		}
		events = append(events, []any{d.names[one.Handle], one.Processor, one.Position, one.Name, values})
	}
	return object{
		"logits": lines, "failures": failures, "all_denied_rows": append([]int{}, result.AllDeniedRows...),
		"applied": result.Applied, "events": events,
	}
}

func (d *driver) remove(names []string) (object, error) {
	var handles []logitport.Handle
	for _, name := range names {
		handles = append(handles, d.handles[name])
	}
	return object{}, d.session.Remove(handles...)
}

func (d *driver) execute(words []string) (object, error) {
	switch words[0] {
	case "open":
		return d.open(words[1:])
	case "add":
		return d.add(words[1:])
	case "step":
		return d.step(words[1:])
	case "remove":
		return d.remove(words[1:])
	case "rewind":
		return object{}, d.session.Rewind(d.handles[words[1]], number(words[2]))
	case "length":
		length, err := d.session.HistoryLength(d.handles[words[1]])
		return object{"length": length}, err
	case "stats":
		stats, err := d.session.Stats()
		return object{"reconnects": stats.Reconnects, "resyncs": stats.Resyncs}, err
	case "close":
		return object{}, d.session.Close()
	}
	panic("unknown command " + words[0])
}

func main() {
	d := driver{target: os.Args[1], handles: map[string]logitport.Handle{}, names: map[logitport.Handle]string{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		words := strings.Split(lines.Text(), " ")
		output, err := d.execute(words)
		if err != nil {
			var failed *logitport.Error
			if !errors.As(err, &failed) {
				panic(err)
			}
			output = object{"error": failed.Code, "message": failed.Message}
		}
		fmt.Println(string(must(json.Marshal(output))))
		if words[0] == "close" {
			return
		}
	}
}
