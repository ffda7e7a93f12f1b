package command

import (
	"sort"

	"github.com/levelrail/levelrail"
)

// jobsKept is how many jobs stay, beside those that run.
const jobsKept = 500

// JobFinish ends a job. Jobs begin with the command that asks for the work. Repeating it does nothing.
type JobFinish struct {
	ID      string             `json:"id"`
	State   levelrail.JobState `json:"state"` // done, failed
	Reason  levelrail.Reason   `json:"reason,omitempty"`
	Message string             `json:"message,omitempty"`
}

func (JobFinish) Kind() string                        { return "job.finish" }
func (c JobFinish) Subject() (levelrail.Kind, string) { return levelrail.KindJob, c.ID }

func (c JobFinish) Validate() error {
	if c.State != levelrail.JobDone && c.State != levelrail.JobFailed {
		return invalid("a job ends as done or failed, not as %q", c.State)
	}
	return required("job id", c.ID)
}

func (c JobFinish) Apply(t *Tx) (any, error) {
	j, there := get[levelrail.Job](t, c.ID)
	if !there {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "there is no job %s", c.ID)
	}
	if j.State != levelrail.JobRunning {
		if j.State != c.State {
			return nil, levelrail.Errorf(levelrail.ErrConflict, "the job %s has ended as %s already", j.ID, j.State)
		}
		return nil, nil
	}
	at := t.now
	j.State, j.Reason, j.Message, j.FinishedAt, j.Stamp = c.State, c.Reason, c.Message, &at, t.stamp(j.Stamp, true)
	put(t, j)
	return nil, nil
}

func checkJob(j *levelrail.Job, model string) error {
	if j == nil {
		return nil
	}
	if j.Model != model {
		return invalid("the job %s is about the model %q, not %s", j.ID, j.Model, model)
	}
	return required("job id", j.ID, "job's action", j.Action)
}

// putNewJob begins a job, nil for none, and forgets the oldest that have ended.
func putNewJob(t *Tx, j *levelrail.Job) error {
	if j == nil {
		return nil
	}
	if _, there := get[levelrail.Job](t, j.ID); there {
		return levelrail.Errorf(levelrail.ErrConflict, "there is a job %s already", j.ID)
	}
	n := *j
	n.State, n.FinishedAt, n.Owner, n.Stamp = levelrail.JobRunning, nil, orDefault(j.Owner), t.stamp(levelrail.Stamp{}, false)
	put(t, n)

	var ended []levelrail.Job
	for _, old := range list[levelrail.Job](t, "") {
		if old.FinishedAt != nil {
			ended = append(ended, old)
		}
	}
	sort.SliceStable(ended, func(a, b int) bool { return ended[a].FinishedAt.Before(*ended[b].FinishedAt) })
	for len(ended) > jobsKept {
		drop(t, levelrail.KindJob, ended[0].ID)
		ended = ended[1:]
	}
	return nil
}
