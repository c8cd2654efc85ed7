-- A history of schema version 1, as that version recorded two runs of the LeNet samples.
BEGIN TRANSACTION;
CREATE TABLE fingerprints (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        made_of TEXT NOT NULL
    );
INSERT INTO "fingerprints" VALUES(1,'11443aa91d6593aa695d553b23284cf1aef85e6d0af0778c0976f86f06675d17','{"engine": "onnxruntime", "force_int8": false, "high": "fp32", "inputs": ["34c14de055c50eb06463dfea9d8e150be3c653bb6214e5670528062a75d6630d"], "metric": "", "model": "ffaf89beeb4c9fc4b90c142134ec825d3d174a41f61b693c7cd4f4962f8b79b7", "optimization_level": null, "ranges": "dd70257d96c6973b8c36fd0bda29d740a187921666d80e4eb131916251e616ae", "tactic_sources": null, "typing": "strong", "versions": {"device": "CPUExecutionProvider", "numpy": "2.4.6", "onnx": "1.23.2", "onnxruntime": "1.31.1", "python": "3.11.7", "trt_bisect": "0.1.0"}, "workspace": null}');
INSERT INTO "fingerprints" VALUES(2,'2d8f3d94f0adfa64a51684368dd8d6a52ac928a31fbbe3407110636f82c93340','{"engine": "onnxruntime", "force_int8": false, "high": "fp32", "inputs": ["c714251012e1e6b4d1a8b6dde6abe00f0b91b8d498fd82bf3f4dd3845386b189"], "metric": "", "model": "6b378694d021c090e4ec6a9cb609c96c8d68513f4c1d371563569548f495ba42", "optimization_level": null, "ranges": "42acf7d3bce4fff1de6d0cbc650606eae3ec7347b2c116b604a8e42a48bbc810", "tactic_sources": null, "typing": "strong", "versions": {"device": "CPUExecutionProvider", "numpy": "2.4.6", "onnx": "1.23.2", "onnxruntime": "1.31.1", "python": "3.11.7", "trt_bisect": "0.1.0"}, "workspace": null}');
CREATE TABLE reports (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run INTEGER NOT NULL REFERENCES runs,
        fingerprint INTEGER NOT NULL REFERENCES fingerprints,
        label TEXT NOT NULL,
        state TEXT NOT NULL,
        started REAL NOT NULL,
        recorded REAL NOT NULL,
        model TEXT NOT NULL,
        engine TEXT NOT NULL,
        typing TEXT NOT NULL,
        strategy TEXT NOT NULL,
        arithmetic TEXT NOT NULL,
        metric TEXT NOT NULL,
        threshold REAL,
        share REAL,
        precision TEXT NOT NULL,
        int8 REAL,
        recipe REAL,
        meets INTEGER,
        culprits TEXT NOT NULL,
        high TEXT NOT NULL,
        fp32_ms REAL,
        fp16_ms REAL,
        int8_ms REAL,
        recipe_ms REAL,
        plans INTEGER NOT NULL,
        builds INTEGER NOT NULL,
        inferences INTEGER NOT NULL,
        calibrate_seconds REAL,
        build_seconds REAL,
        infer_seconds REAL,
        total_seconds REAL,
        peak_bytes INTEGER NOT NULL,
        exit_code INTEGER,
        command TEXT NOT NULL
    );
INSERT INTO "reports" VALUES(1,1,1,'lenet','finished',1.79527110682273173328e+09,1.79527111457293152806e+09,'samples/lenet/lenet.onnx','onnxruntime','strong','branch','emulated','cosine',0.99,0.5,'fp32',9.97395436738751639538e-01,9.97395436738751639538e-01,1,'[]','[]',NULL,NULL,NULL,NULL,7,1,7,1.23527275000014924444e+00,3.05726240003423369029e-02,2.5207889993907866416e-03,2.88863561800099,129884160,0,'trt-bisect run samples/lenet/lenet.onnx --calibration samples/lenet/calibration.npz --output /runs/monday --history none');
INSERT INTO "reports" VALUES(2,2,2,'lenet_planted','finished',1.79527111145700669285e+09,1.79527111458951044078e+09,'samples/lenet/lenet_planted.onnx','onnxruntime','strong','branch','emulated','cosine',0.99,0.5,'fp32',2.99759497909697858464e-01,1.0,1,'["ip2"]','["ip2"]',NULL,NULL,NULL,NULL,10,2,10,2.50241371999436523765e-01,4.87743199992110090801e-02,7.81862599978922281906e-03,1.96477016700009698979e+00,128724992,1,'trt-bisect run samples/lenet/lenet_planted.onnx --calibration samples/lenet/calibration.npz --output /runs/tuesday --history none');
CREATE TABLE runs (
        id INTEGER PRIMARY KEY,
        journal TEXT NOT NULL UNIQUE,
        folder TEXT NOT NULL,
        label TEXT NOT NULL
    );
INSERT INTO "runs" VALUES(1,'37687c565cc74df8b22f3840a8951e85','/runs/monday','');
INSERT INTO "runs" VALUES(2,'91200f8fe1ca4417ac9d33bb766b5ba5','/runs/tuesday','');
CREATE TABLE trials (
        run INTEGER NOT NULL REFERENCES runs,
        fingerprint INTEGER NOT NULL REFERENCES fingerprints,
        plan TEXT NOT NULL,
        place INTEGER NOT NULL,
        outcome TEXT NOT NULL,
        metric TEXT,
        figure REAL,
        build_seconds REAL NOT NULL,
        infer_seconds REAL NOT NULL,
        message TEXT NOT NULL,
        PRIMARY KEY (run, fingerprint, plan)
    ) WITHOUT ROWID;
INSERT INTO "trials" VALUES(1,1,'8*1.f*8',2,'measured','cosine',9.99966980074472155948e-01,4.3675177143346188141e-03,3.60112714198683805943e-04,'');
INSERT INTO "trials" VALUES(1,1,'8*2.f*7',3,'measured','cosine',9.96963572947013654257e-01,4.3675177143346188141e-03,3.60112714198683805943e-04,'');
INSERT INTO "trials" VALUES(1,1,'8*3.f*6',4,'measured','cosine',0.997444911281835,4.3675177143346188141e-03,3.60112714198683805943e-04,'');
INSERT INTO "trials" VALUES(1,1,'8*4.f*1.8*1.f*1.8*1.f*1',7,'measured','cosine',9.97395436738751639538e-01,4.3675177143346188141e-03,3.60112714198683805943e-04,'');
INSERT INTO "trials" VALUES(1,1,'8*4.f*1.8*1.f*3',6,'measured','cosine',9.98782835982517824824e-01,4.3675177143346188141e-03,3.60112714198683805943e-04,'');
INSERT INTO "trials" VALUES(1,1,'8*4.f*5',5,'measured','cosine',9.98358025990080721889e-01,4.3675177143346188141e-03,3.60112714198683805943e-04,'');
INSERT INTO "trials" VALUES(1,1,'f*9',1,'measured','cosine',1.0,4.3675177143346188141e-03,3.60112714198683805943e-04,'');
INSERT INTO "trials" VALUES(2,2,'8*1.f*8',2,'measured','cosine',1.0,6.96775999988728626799e-03,1.11694657139846040272e-03,'');
INSERT INTO "trials" VALUES(2,2,'8*2.f*7',3,'measured','cosine',1.0,6.96775999988728626799e-03,1.11694657139846040272e-03,'');
INSERT INTO "trials" VALUES(2,2,'8*3.f*6',4,'measured','cosine',1.0,6.96775999988728626799e-03,1.11694657139846040272e-03,'');
INSERT INTO "trials" VALUES(2,2,'8*4.f*1.8*1.f*1.8*1.f*1',7,'measured','cosine',2.99759497909697858464e-01,6.96775999988728626799e-03,1.11694657139846040272e-03,'');
INSERT INTO "trials" VALUES(2,2,'8*4.f*1.8*1.f*3',6,'measured','cosine',1.0,6.96775999988728626799e-03,1.11694657139846040272e-03,'');
INSERT INTO "trials" VALUES(2,2,'8*4.f*5',5,'measured','cosine',1.0,6.96775999988728626799e-03,1.11694657139846040272e-03,'');
INSERT INTO "trials" VALUES(2,2,'f*7.8*1.f*1',10,'measured','cosine',2.99759497909697858464e-01,2.94964266686292830854e-03,2.379221999945002608e-03,'');
INSERT INTO "trials" VALUES(2,2,'f*7.a*1.f*1',9,'measured','cosine',4.63591207016332662593e-01,2.94964266686292830854e-03,2.379221999945002608e-03,'');
INSERT INTO "trials" VALUES(2,2,'f*7.w*1.f*1',8,'measured','cosine',9.99999999999999777955e-01,2.94964266686292830854e-03,2.379221999945002608e-03,'');
INSERT INTO "trials" VALUES(2,2,'f*9',1,'measured','cosine',1.0,6.96775999988728626799e-03,1.11694657139846040272e-03,'');
CREATE INDEX reports_by_run ON reports (run, started);
CREATE INDEX reports_by_label ON reports (label, started);
CREATE INDEX reports_by_time ON reports (started);
CREATE INDEX reports_by_fingerprint ON reports (fingerprint);
CREATE INDEX trials_by_fingerprint ON trials (fingerprint);
PRAGMA application_id=1414677064;
PRAGMA user_version=1;
COMMIT;
